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
NEED_CUDA = (
    "torch_context_parallel_public",
    "ring_attention_pytorch_ring_triton",
    "ring_attention_pytorch_striped_triton",
)
WORDS = (*TINY, *WORLD, "device=cpu", "kernel=eager", "dtype=float32", "world_size=4")


def unsupported(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(configuration(*words), None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_plans_or_says_what_to_do_instead(variant: str) -> None:
    words = (*WORDS, f"variant={variant}")
    if variant in ("yunchang_ulysses", "transformer_engine_a2a"):
        assert "must be multiples of it" in unsupported(*words)  # 2 key/value heads on 4 ranks
    elif variant.startswith("torch_flex"):
        assert "takes multiples of 128 tokens a rank" in unsupported(*words)
    elif variant in NEED_CUDA:
        assert "CUDA" in unsupported(*words)
    else:
        assert plan(configuration(*words), None)[0].unsupported is None


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith(tuple(DISTRIBUTIONS))])
def test_a_missing_package_is_named_with_its_cure(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installed.importlib.metadata, "version", missing)
    prefix = next(prefix for prefix in DISTRIBUTIONS if variant.startswith(prefix))
    reason = f"{DISTRIBUTIONS[prefix]} is not installed; pip install 'attention-accuracy[packages]'"
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


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_a_package_cannot_do_is_a_line_that_says_what_to_do(what: str) -> None:
    variant, word, text = UNSUPPORTED[what]
    for prefix, distribution in DISTRIBUTIONS.items():
        if variant.startswith(prefix) and (missing := installed.unsupported(distribution)):
            pytest.skip(missing)
    assert text in unsupported(*WORDS, f"variant={variant}", word)
