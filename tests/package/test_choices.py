import importlib.metadata
from typing import Any

import pytest

from accuracy.core.errors import ConfigError
from accuracy.execute.plan import plan
from accuracy.package import installed
from tests.measuring import TINY, configuration
from tests.package.conftest import DISTRIBUTIONS
from tests.package.driving import WORLD
from tests.variants import packages

VARIANTS = [name for name in packages() if name != "callable"]
WORDS = (*TINY, *WORLD, "device=cpu", "kernel=eager", "dtype=float32", "world_size=4")


def distribution(variant: str) -> str | None:
    return next((name for prefix, name in DISTRIBUTIONS.items() if variant.startswith(prefix)), None)


def absent(variant: str) -> bool:
    name = distribution(variant)
    return name is not None and installed.unsupported(name) is not None


def unsupported(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(configuration(*words), None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


INSTEAD = {  # 2 key/value heads on 4 ranks; few tokens
    "yunchang_ulysses": "multiples", "transformer_engine_a2a": "multiples", "torch_flex": "multiples of 128 tokens",
    "torch_context_parallel_public": "CUDA", "ring_attention_pytorch_ring_triton": "CUDA",
    "ring_attention_pytorch_striped_triton": "CUDA",
}  # fmt: skip


def test_it_plans_or_says_what_to_do_instead() -> None:
    for variant in VARIANTS:
        words = (*WORDS, f"variant={variant}")
        text = INSTEAD.get(variant, INSTEAD["torch_flex"] if variant.startswith("torch_flex") else None)
        if absent(variant):
            continue
        if text is None:
            assert plan(configuration(*words), None)[0].unsupported is None, variant
        else:
            assert text in unsupported(*words), variant


def test_a_missing_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installed.importlib.metadata, "version", missing)
    for variant in VARIANTS:
        if name := distribution(variant):
            reason = f"{name} is not installed; pip install 'attention-accuracy[packages]'"
            assert unsupported(*WORDS, f"variant={variant}") == reason


UNSUPPORTED = {
    "a full mask in a balanced ring": ("ring_flash_attn_zigzag", "problem.mask=full", "set problem.mask=causal"),
    "float64 in float32 sums": ("ring_flash_attn_ring", "dtype=float64", "use dtype=float32"),
    "one rank that sends to itself": ("yunchang_ring", "world_size=1", "which gloo cannot"),
    "a hybrid of three": ("yunchang_hybrid", "world_size=3", "use a multiple of them, not 3"),
    "16 bits in float32 products": ("ring_attention_pytorch_ring", "dtype=bfloat16", "use float32"),
    "a scale that would be dropped": ("ring_attention_pytorch_ring", "problem.softmax_scale=0.77", "has 1/sqrt"),
    "a kernel that would not be used": ("ringmaster_ring", "kernel=torch_flash", "use kernel=eager"),
    "a document that its ranks cannot share": (
        "ring_flash_attn_zigzag_varlen",
        "problem.documents=60+36",
        "cuts each document into 8 parts: 60 is no multiple",
    ),
    "documents of a ring without them": ("ring_flash_attn_ring", "problem.documents=60+36", "has no packed documents"),
    "torch's balance of a full mask": ("torch_context_parallel_allgather_balanced", "problem.mask=full", "unbalanced"),
}


def test_what_a_package_cannot_do_is_a_line_that_says_what_to_do() -> None:
    for what, (variant, word, text) in UNSUPPORTED.items():
        if not absent(variant):
            assert text in unsupported(*WORDS, f"variant={variant}", word), what
