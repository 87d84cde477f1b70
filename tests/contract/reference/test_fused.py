"""The fused reference is the torch one's equal, to the digits that both can have: in Triton's interpreter, and on a
GPU."""

import importlib.util
import math
from dataclasses import replace
from typing import Any

import mpmath
import pytest
import torch

from accuracy.core.case import Problem
from accuracy.core.errors import ConfigError
from accuracy.core.fields import default_softmax_scale
from accuracy.measurement.memory import reference_bytes
from accuracy.reference import choice, float64
from accuracy.reference.float64 import Reference
from tests.contract.reference.exact import TENSORS, exact, head, of_head, problem, relative_error

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

from accuracy.reference import fused

PROBLEM = Problem(
    batch=1, seqlen=8, heads=2, heads_kv=1, head_dim=4, mask="causal", softmax_scale=default_softmax_scale(4)
)
HERE = "cuda" if torch.cuda.is_available() else "cpu"
BOUNDS = {"out": 1e-14, "lse": 1e-14, "delta": 1e-14, "dq": 1e-12, "dk": 1e-12, "dv": 1e-12}
"""Relative: 90 units of float64 for sums of at most a few thousand terms; gradients multiply differences."""


def drawn(seed: int, **shape: Any) -> list[torch.Tensor]:
    return [x.to(HERE) for x in problem(seed=seed, **shape)]


def differences(a: Reference, b: Reference) -> dict[str, float]:
    pairs = {name: (getattr(a, name), getattr(b, name)) for name in TENSORS}
    return {name: float((x - y).norm() / y.norm()) for name, (x, y) in pairs.items()}


def assert_equals_torchs(*tensors: torch.Tensor, times: float = 1.0, **how: Any) -> Reference:
    reference = fused.attention(*tensors, **how)
    found = differences(reference, float64.attention(*tensors, **how))
    assert all(found[name] < BOUNDS[name] * times for name in TENSORS), found
    return reference


@pytest.mark.parametrize("causal", [True, False])
def test_agrees_with_fifty_digits_to_1e_14(causal: bool) -> None:
    """The planted fault is a scale in float32, which is what Triton would make of a Python float."""
    tensors = drawn(3, heads=1)
    expected = exact(*of_head(0, *tensors), 0.1, causal)
    reference, wrong = (
        fused.attention(*tensors, scale=scale, causal=causal)
        for scale in (0.1, float(torch.tensor(0.1, dtype=torch.float32)))
    )
    for name in TENSORS:
        assert relative_error(head(reference, name, 0), expected[name]) < 1e-14, name
    assert relative_error(head(wrong, "lse", 0), expected["lse"]) > 1e-10


@pytest.mark.stress(1)
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("held", [2**27, 8 * 128**2])
def test_tiles_squares_and_groups_of_heads_agree_with_torchs(online: bool, held: int, monkeypatch) -> None:
    """More rows than a tile and, with little memory, more than a square; heads that share keys; batches; a head
    dim that is no power of two. Equal inputs give equal bits."""
    monkeypatch.setattr(fused, "HELD", held)
    monkeypatch.setattr(fused, "HELD_INPUTS", 1 if held < 2**27 else 2**29)
    monkeypatch.setattr(fused, "PLAIN_BITS", 0 if online else 450)
    tensors = drawn(1, heads=2, batch=2, length=140, dim=24)
    first = assert_equals_torchs(*tensors, scale=0.2, causal=True)
    second = fused.attention(*tensors, scale=0.2, causal=True)
    assert all(torch.equal(getattr(first, name), getattr(second, name)) for name in TENSORS)


@pytest.mark.stress(2)
@pytest.mark.parametrize("mask", [
    {"causal": True, "window": 30}, {"causal": False, "window": 70}, {"causal": True, "documents": (100, 1, 199)},
    {"causal": True, "top_left": True}, {"causal": False},
], ids=str)  # fmt: skip
def test_masks_agree_with_torchs_across_tiles(mask: dict, monkeypatch) -> None:
    monkeypatch.setattr(fused, "HELD", 4 * 128**2)
    q, k, v, dout = drawn(1, length=300, dim=16)
    assert_equals_torchs(q[:, 100:], k, v, dout[:, 100:], scale=0.3, **mask)


def test_logits_beyond_the_exponents_range_agree_with_torchs() -> None:
    """Scores of thousands: without the running maximum 2^s would be infinite. The condition number is the largest
    score; nearly all weights are one or none, so that gradients of scores cancel: only out, lse, dv are compared."""
    q, k, v, dout = drawn(2, heads=1, length=150, dim=16, spread=40.0)
    ours, theirs = (each.attention(q, k, v, dout, scale=1.0, causal=True) for each in (fused, float64))
    largest = float((q[0, :, 0].double() @ k[0, :, 0].double().T).abs().max())
    assert largest > 1024 * math.log(2)
    for name in ("out", "lse", "dv"):
        assert differences(ours, theirs)[name] < 1e-16 * largest * 10, name


def test_powers_of_two_are_right_to_the_last_digit() -> None:
    """V = 1 and equal scores are exact whatever 2^x does; so: one key beside another, out = 1 / (1 + e^d)."""
    gaps = torch.linspace(-300.0, 300.0, 601, dtype=torch.float64)
    q = torch.stack([gaps, torch.zeros_like(gaps)], 1)[None, :, None]
    k = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)[None, :, None]
    v = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)[None, :, None]
    given = (x.to(HERE) for x in (q, k, v, torch.ones_like(q)))
    out = fused.attention(*given, scale=1.0, causal=False).out[0, :, 0, 0]
    expected = [1 / (1 + mpmath.exp(float(gap))) for gap in gaps]
    worst = max(abs(mpmath.mpf(a) - b) / b for a, b in zip(out.tolist(), expected, strict=True))
    assert worst < 300 / math.log(2) * 2**-52 + 8 * 2**-53  # the rounding of s = 433 bits, then a few of p and the sum


def test_it_is_taken_where_it_runs_and_refuses_tf32() -> None:
    capped = replace(PROBLEM, softcap=2.0)
    for given, method in (((PROBLEM, "cuda", "auto"), "fused"), ((PROBLEM, "cuda", "torch"), "torch"),
                          ((PROBLEM, "cpu", "auto"), "torch"), ((capped, "cuda", "auto"), "torch")):  # fmt: skip
        assert choice.choose(*given) == method
    with pytest.raises(ConfigError, match=r"reference\.method=fused: its kernels know no softcap"):
        choice.choose(capped, "cuda", "fused")
    torch.backends.cuda.matmul.allow_tf32 = True
    with pytest.raises(RuntimeError, match="TF32"):
        fused.attention(*drawn(0), scale=1.0, causal=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [16, 80, 128, 256])
@pytest.mark.parametrize("mask", [
    {"causal": True}, {"causal": False}, {"causal": True, "window": 300}, {"causal": True, "documents": (700, 1, 1299)},
], ids=str)  # fmt: skip
def test_agrees_with_torchs_at_sizes_of_many_tiles(dim: int, mask: dict) -> None:
    tensors = drawn(4, heads=4, heads_kv=2, batch=2, length=2000, dim=dim)
    assert_equals_torchs(*tensors, scale=default_softmax_scale(dim), **mask)


@pytest.mark.gpu
@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_squares_of_a_long_sequence_agree_with_torchs(spread: float) -> None:
    """Ten times larger q and k are scores of hundreds, with the running maximum."""
    q, k, v, dout = drawn(5, length=9000, dim=128)
    assert_equals_torchs(q * spread, k * spread, v, dout, times=spread**2, scale=0.09, causal=True)


@pytest.mark.gpu
def test_memory_stays_within_what_is_planned() -> None:
    q, k, v, dout = (torch.randn(1, 32768, 8, 96, dtype=torch.bfloat16, device="cuda") for _ in range(4))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    reference = fused.attention(q, k, v, dout, scale=0.1, causal=True)
    results = sum(getattr(reference, name).nbytes for name in TENSORS)
    long = replace(PROBLEM, seqlen=32768, heads=8, heads_kv=8, head_dim=96)
    assert torch.cuda.max_memory_allocated() - before - results <= reference_bytes(long, "cuda")
