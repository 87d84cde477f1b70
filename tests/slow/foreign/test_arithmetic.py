"""What tensor cores do to float32 is a fact that is told, and a fault beside it is found; a function is asked first."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.verdict.label import LOGIC, ROUNDING
from tests.measuring import only_grids
from tests.strangers import Mixed, Product, attend, split_16, tf32, tf32_cut

SMALL = {"seqlen": 64, "heads": 2, "heads_kv": 1, "head_dim": 16, "dtype": "float32", "world_size": 1}


def cut_sums(a: Tensor, b: Tensor) -> Tensor:
    """Eight terms at a time, the sum cut off to float32 each time, as tensor cores do."""
    total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=torch.float64)
    for first in range(0, a.shape[-1], 8):
        total = total + a[..., first : first + 8].double() @ b[..., first : first + 8, :].double()
        near = total.float()
        total = (near.view(torch.int32) - (near.double().abs() > total.abs()).int()).view(torch.float32).double()
    return total.float()


def float16(a: Tensor, b: Tensor) -> Tensor:
    return a.half().float() @ b.half().float()


def attention_of(product: Product) -> Callable[..., Any]:
    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> tuple[Tensor, Tensor]:
        def both(a: Tensor, b: Tensor) -> Tensor:
            return Mixed.apply(a, b, product, product)

        return attend(q, k, v, causal=causal, scale=softmax_scale, wide=torch.float32, product=both)

    attention.__name__ = product.__name__
    return attention


@pytest.mark.stress(1)
@pytest.mark.parametrize(("product", "words"), [
    (tf32, "rounded to 10 bits"), (tf32_cut, "cut off to 10 bits"), (split_16, "about 16 bits"), (cut_sums, ""),
])  # fmt: skip
def test_tensor_cores_arithmetic_is_no_fault(product: Product, words: str, few_grids: None) -> None:
    """Also where a function computes so whatever comes: float64, and P beside 16-bit inputs."""
    found = accuracy.diagnose(attention_of(product), **SMALL | {"dtype": ["float16", "float32", "float64"]})
    assert (found.label, found.is_bug) == (ROUNDING, False)
    assert words in found.sentence


@pytest.mark.parametrize(("product", "arithmetic", "passes", "warned"), [
    (tf32, None, True, True), (tf32, "tf32", True, False), (tf32_cut, "tf32", True, False),
    (tf32, "float32", False, False), (split_16, "float32", False, False), (cut_sums, None, True, False),
    (float16, None, False, False),
])  # fmt: skip
def test_assert_accurate_takes_what_was_said_and_tells_what_was_not(
    product: Product, arithmetic: str | None, passes: bool, warned: bool
) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            accuracy.assert_accurate(attention_of(product), **SMALL, arithmetic=arithmetic)
            assert passes
        except AssertionError:
            assert not passes
    assert any("TF32" in str(each.message) for each in told) == warned


def few_rows(out: Tensor) -> Tensor:
    """One row of 512 is the row before it: of 256 rows one, whose error is that of rounding all to e5m2."""
    wrong = torch.rand(out.shape[:3], generator=torch.Generator().manual_seed(0)) < 1 / 512
    return torch.where(wrong[..., None], out.roll(1, 1), out)


@pytest.mark.stress(2, "product")
@pytest.mark.parametrize(("product", "dtype", "fault"), [
    (torch.matmul, "float16", few_rows), (torch.matmul, "float16", lambda out: out * 1.05),
    (torch.matmul, "float32", lambda out: out * 1.00003), (tf32, "float32", lambda out: out * 1.01),
])  # fmt: skip
def test_a_fault_of_a_format_s_size_is_no_arithmetic_and_one_beside_tf32_is_found(
    product: Product, dtype: str, fault: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accuracy.config.resolve.with_given", only_grids("probes"))

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> tuple[Tensor, Tensor]:
        out, lse = attention_of(product)(q, k, v, causal=causal, softmax_scale=softmax_scale)
        return fault(out), lse

    found = accuracy.diagnose(attention, **SMALL | {"dtype": dtype, "seqlen": 64 if product is tf32 else 528})
    assert found.label == LOGIC
    assert "out" in {*found.verdicts.loc[found.verdicts["label"] == LOGIC, "tensor"]}
    assert product is tf32 or not found.results["options"].str.contains("arithmetic").any()


def in_8_bits(x: Tensor, form: torch.dtype, is_scaled: bool) -> Tensor:
    """x rounded to the format and back, whose gradient goes through as if nothing was rounded."""
    largest = x.detach().abs().amax((1, 3), keepdim=True).float().clamp(min=2.0**-100)  # q is 0 in a probe
    if form is torch.int8:
        kept = (x.float() * 127 / largest).round() * largest / 127
    else:
        scale = largest / torch.finfo(form).max if is_scaled else 1.0
        kept = (x.float() / scale).to(form).float() * scale
    return (x + (kept - x).detach()).to(x.dtype)


@pytest.mark.stress(2)
@pytest.mark.parametrize(("tensors", "form", "is_scaled", "wrong"), [
    ("k", torch.float8_e4m3fn, False, ""), ("k", torch.float8_e4m3fn, False, "last key"),
    ("qk", torch.int8, True, "last key"), ("qk", torch.float8_e5m2, True, ""), ("q", torch.float8_e5m2, False, ""),
    ("k", torch.float8_e4m3fn, False, "scale"), ("qk", torch.int8, True, ""),
    ("qk", torch.int8, True, "v in float16"), ("qk", torch.int8, True, "last key, v in float16"),
])  # fmt: skip
def test_q_or_k_in_8_bits_is_a_fact_and_a_fault_beside_it_is_found(
    tensors: str, form: torch.dtype, is_scaled: bool, wrong: str, few_grids: None
) -> None:
    """The fault in one key of more than 20 is far below the error of the 8 bits; only where q and k are exact in them
    it shows. v in float16 is none, whatever the dtype."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> tuple[Tensor, Tensor]:
        q, k = (in_8_bits(x, form, is_scaled) if name in tensors else x for name, x in (("q", q), ("k", k)))
        v = v.half().to(v.dtype) if "float16" in wrong else v
        if "last key" in wrong and k.shape[1] > 20:
            k = torch.cat([k[:, :-1], k[:, :1]], 1)
        factor = 1.1 if wrong == "scale" else 1.0
        return attention_of(torch.matmul)(q, k, v, causal=causal, softmax_scale=softmax_scale * factor)

    found = accuracy.diagnose(attention, **SMALL | {"dtype": ["bfloat16", "float32"]})
    is_bug = wrong not in ("", "v in float16")
    assert found.label == (LOGIC if is_bug else ROUNDING)
    assert is_bug or "in 8 bits" in found.sentence
