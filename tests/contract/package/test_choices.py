"""What a package cannot do, and the stand-in for flash-attn, is said before any work."""

import importlib.metadata
import sys
from typing import Any

import pytest
import torch

from accuracy.execute.plan import plan
from accuracy.kernel.eager import Eager
from accuracy.package import flash_attn_stand_in, substitutes
from accuracy.variant.base import schedule_of
from tests.contract.package.driving import DISTRIBUTIONS, WORLD, missing
from tests.measuring import TINY, configuration, refused
from tests.variants import packages

VARIANTS = [name for name in packages() if name != "callable"]
WORDS = (*TINY, *WORLD, "device=cpu", "kernel=eager", "dtype=float32", "world_size=4")
INSTEAD = {  # 2 key/value heads on 4 ranks; few tokens
    "yunchang_ulysses": "multiples", "transformer_engine_a2a": "multiples", "torch_flex": "multiples of 128 tokens",
    "torch_context_parallel_public": "CUDA",
}  # fmt: skip


def test_it_plans_or_says_what_to_do_instead() -> None:
    here = [variant for variant in VARIANTS if not missing(variant)]
    plans = plan(configuration(*WORDS, f"variant=[{','.join(here)}]", "unusable=record"), None)
    assert sorted(each.case.variant.name for each in plans) == here
    for each in plans:
        name = each.case.variant.name
        text = INSTEAD.get("torch_flex" if name.startswith("torch_flex") else name)
        assert text in (each.unsupported or "") if text else each.unsupported is None, name


def test_a_missing_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_found)
    plans = plan(configuration(*WORDS, f"variant=[{','.join(VARIANTS)},ring]", "unusable=record"), None)
    for prefix, name in DISTRIBUTIONS.items():
        found = [each for each in plans if each.case.variant.name.startswith(prefix)]
        assert {each.unsupported for each in found} == {
            f"{name} is not installed; pip install 'attention-accuracy[packages]'"
        }
        assert all(f"{name}==None" in schedule_of(each.case.variant.forward).code(each.case) for each in found)


def test_what_a_package_cannot_do_is_a_line_that_says_what_to_do() -> None:
    for variant, word, text in (
        ("ring_flash_attn_zigzag", "problem.mask=full", "set problem.mask=causal"),
        ("yunchang_ring", "world_size=1", "which gloo cannot"),
        ("ring_attention_pytorch_ring", "dtype=bfloat16", "use float32"),
        ("ring_attention_pytorch_ring", "problem.softmax_scale=0.77", "has 1/sqrt"),
        ("ringmaster_ring", "kernel=torch_flash", "use kernel=eager"),
        ("ring_flash_attn_zigzag_varlen", "problem.documents=60+36", "into 8 parts: 60 is no multiple"),
        ("torch_context_parallel_allgather_balanced", "problem.mask=full", "unbalanced"),
    ):
        if not missing(variant):
            assert text in refused(*WORDS, f"variant={variant}", word), (variant, word)


def test_what_the_stand_in_cannot_do_it_refuses_and_nobody_else_meets_it() -> None:
    interface, before = flash_attn_stand_in.interface(Eager()), sys.modules.get("flash_attn")
    plain = {"dropout_p": 0.0, "softmax_scale": 0.3, "causal": True, "window_size_left": -1, "window_size_right": -1,
             "softcap": 0.0, "alibi_slopes": None, "return_softmax": False}  # fmt: skip
    x = torch.randn(1, 6, 4, 8)
    for asked in ({"dropout_p": 0.1}, {"window_size_left": 8}, {"softcap": 30.0}, {"alibi_slopes": torch.ones(4)}):
        with pytest.raises(NotImplementedError, match="no dropout, window"):
            interface._flash_attn_forward(x, x, x, **{**plain, **asked})
    with substitutes.modules(flash_attn_stand_in.modules(Eager())):
        assert sys.modules["flash_attn"].__version__ == flash_attn_stand_in.VERSION
    assert sys.modules.get("flash_attn") is before
