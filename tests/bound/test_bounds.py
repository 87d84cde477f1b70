"""Bounds hold for every healthy kernel, on all inputs, and are near enough to prove faults."""

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.bound import policy
from accuracy.bound.policy import Policy
from accuracy.bound.running import Bound, bounds
from accuracy.core import plugins
from accuracy.core.case import Problem
from accuracy.inputs import drawing
from accuracy.kernel.base import KernelKnobs
from accuracy.kernel.chunked import Chunked
from accuracy.kernel.eager import Eager
from accuracy.kernel.torch_flash import TorchFlash
from accuracy.kernel.torch_math import TorchMath
from accuracy.reference.float64 import Reference, attention
from tests.reference import exact

DTYPES = ("bfloat16", "float16", "float32")
ORDINARY = ("gaussian", "heavy_channels", "outliers", "peaked", "rising_maxima", "attention_sink")
ALIKE = ("uniform", "sum_loss", "tied", "one_value", "one_gradient", "one_hot", "index_value", "zero_query")
"""Values that are tied, or that rounding leaves as they are: its errors are not independent."""
KERNELS = {"eager": Eager(), "chunked": Chunked(key_chunk=24), "math": TorchMath(), "flash": TorchFlash()}
PROBLEM = Problem(1, 96, 4, 2, 32, "causal", 32**-0.5)
HOW = {"scale": PROBLEM.softmax_scale, "causal": True}
TENSORS = ("out", "lse", "dq", "dk", "dv")


@cache
def drawn(name: str, dtype: str) -> tuple[drawing.Inputs, Reference]:
    part = plugins.default_part(f"accuracy.inputs.distributions:{name}")
    inputs = drawing.round_to(drawing.draw(part, PROBLEM, 0), dtype, "cpu")
    return inputs, attention(*inputs.tensors, **HOW)


def policy_of(kernel: str, dtype: str) -> Policy:
    return policy.short_sums(dtype, PROBLEM.seqlen) if kernel == "flash" else policy.kernel(dtype)


def results(kernel: KernelKnobs, inputs: drawing.Inputs, scale: float = PROBLEM.softmax_scale) -> dict[str, Tensor]:
    (q, k, v, dout), how = inputs.tensors, {"scale": scale, "causal": True}
    out, lse = kernel.forward(q, k, v, out_dtype=q.dtype, **how)
    gradients = kernel.backward(dout, q, k, v, out, lse, gradient_dtype=q.dtype, **how)
    return dict(zip(TENSORS, (out, lse, *gradients), strict=True))


def certain_and_likely(bound: dict[str, Bound]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of each tensor the certain bound, and the one that 1 in 10^6 may exceed."""
    return {name: x.certain for name, x in bound.items()}, {name: x.likely(1e-6) for name, x in bound.items()}


def beyond(found: dict[str, Tensor], reference: Reference, limits: dict[str, Tensor]) -> dict[str, int]:
    return {
        name: int(((x.double() - getattr(reference, name)).abs() > limits[name]).sum()) for name, x in found.items()
    }


@pytest.mark.stress(14, "kernel", "inputs", "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", ORDINARY + ALIKE)
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_error_of_a_healthy_kernel_is_beyond_its_bound(kernel: str, inputs: str, dtype: str) -> None:
    """Neither the certain one nor, where errors are independent, the one that 1e-6 of 43,000 elements may exceed."""
    tensors, reference = drawn(inputs, dtype)
    found = results(KERNELS[kernel], tensors)
    certain, likely = certain_and_likely(bounds(*tensors.tensors, reference, policy_of(kernel, dtype), **HOW))
    assert not any(beyond(found, reference, certain).values())
    if inputs in ORDINARY:
        assert not any(beyond(found, reference, likely).values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_likely_bound_is_near(kernel: str, dtype: str) -> None:
    """Its median is at most 15 times the root mean square of the errors in an element's row, of lse of all rows."""
    tensors, reference = drawn("gaussian", dtype)
    bound = bounds(*tensors.tensors, reference, policy_of(kernel, dtype), **HOW)
    for name, x in results(KERNELS[kernel], tensors).items():
        square = (x.double() - getattr(reference, name)).square()
        size = (square.mean() if name == "lse" else square.mean(-1, keepdim=True)).sqrt()
        assert float((bound[name].likely(1e-6) / size).nanmedian()) <= 15, name


def dense(q: Tensor, k: Tensor, v: Tensor, sinks: Any = (), softcap: float | None = None, hidden: Any = None) -> Any:
    """Attention in float32 inside; hidden: (Sq, S)."""
    k, v = (x.float().repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * q.shape[-1] ** -0.5
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if hidden is None else scores.masked_fill(hidden, -math.inf)
    if sinks:
        more = torch.tensor(sinks)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, more], -1)
    lse = scores.logsumexp(-1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1)[..., : k.shape[1]], v).to(q.dtype), lse


def hidden(queries: int, keys: int, window: int | None, documents: tuple[int, ...], causal: bool) -> Tensor:
    row, key = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    found = (key > row) if causal else torch.zeros(queries, keys, dtype=torch.bool)
    if window is not None:
        found |= (key - row).abs() > window
    if documents:
        of = torch.repeat_interleave(torch.arange(len(documents)), torch.tensor(documents))
        found |= of[row] != of[key]
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "how",
    [
        {"causal": False}, {"causal": True, "window": 9}, {"causal": False, "documents": (20, 1, 27)},
        {"causal": True, "softcap": 2.0}, {"causal": True, "sinks": (0.5, -1.0, 3.0, 0.0)},
    ],
    ids=str,
)  # fmt: skip
def test_bounds_know_masks_caps_and_sinks(how: dict[str, Any], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = 48 if how.get("documents") else 31
    q, dout = (torch.randn(2, queries, 4, 16, generator=generator).to(dtype).requires_grad_() for _ in range(2))
    k, v = (torch.randn(2, 48, 2, 16, generator=generator).to(dtype).requires_grad_() for _ in range(2))
    mask = hidden(queries, 48, how.get("window"), how.get("documents", ()), how["causal"])
    out, lse = dense(q, k, v, how.get("sinks"), how.get("softcap"), mask)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    found = dict(zip(TENSORS, (out, lse, *gradients), strict=True))
    given = {"scale": 0.25, **how}
    reference = attention(q, k, v, dout, **given)
    for limits in certain_and_likely(accuracy.bounds(q, k, v, dout, policy="kernel", **how)):
        assert not any(beyond(found, reference, limits).values())


@pytest.mark.parametrize(("dtype", "factor"), [("float32", 1.01), ("float16", 1.5)])
def test_a_factor_is_proven_wrong_even_of_the_loosest_function(dtype: str, factor: float) -> None:
    tensors, reference = drawn("gaussian", dtype)
    found = results(KERNELS["eager"], tensors)
    limits, _ = certain_and_likely(bounds(*tensors.tensors, reference, policy.loosest(dtype), **HOW))
    assert not any(beyond(found, reference, limits).values())
    for tensor in ("out", "dq", "dk", "dv"):
        count = beyond(found | {tensor: found[tensor] * factor}, reference, limits)
        assert {name for name, number in count.items() if number} == {tensor}


def test_sums_that_a_policy_does_not_have_are_beyond_its_bound() -> None:
    """Running sums in bfloat16 of float32 inputs: no kernel that sums in float32 gives that."""
    tensors, reference = drawn("gaussian", "float32")
    found = results(Chunked(key_chunk=24, accumulator_dtype="bfloat16"), tensors)
    certain, _ = certain_and_likely(bounds(*tensors.tensors, reference, policy.kernel("float32"), **HOW))
    assert all(beyond(found, reference, certain)[name] for name in ("out", "dq"))


def test_float64_is_within_its_certain_bound_in_50_digits() -> None:
    """Every kernel; a factor of 1 + 2^-38 on any tensor is not."""
    q, k, v, dout = (x.double() for x in exact.problem(3, heads=1))
    scale = q.shape[-1] ** -0.5
    truth = exact.exact(*(x[0, :, 0] for x in (q, k, v, dout)), scale, True)
    how: dict[str, Any] = {"scale": scale, "causal": True}
    bound = bounds(q, k, v, dout, attention(q, k, v, dout, **how), policy.kernel("float64"), **how)
    inputs = drawing.Inputs(q, k, v, dout)
    digits = {
        name: [each for row in truth[name] for each in (row if isinstance(row, list) else [row])] for name in TENSORS
    }

    def beyond_digits(name: str, x: Tensor) -> int:
        rows = zip(x.flatten().tolist(), digits[name], bound[name].certain.flatten().tolist(), strict=True)
        return sum(abs(given - value) > limit for given, value, limit in rows)

    for word, kernel in KERNELS.items():
        for name, x in results(kernel, inputs, scale=scale).items():
            assert not beyond_digits(name, x), (word, name)
            assert beyond_digits(name, x * (1 + 2.0**-38)), (word, name)


def test_what_a_device_stores_as_zero_is_within_its_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 8, 1, 16, generator=generator).bfloat16() for _ in range(3))
    dout = torch.full_like(q, 3e-39)
    stored_as_zero = attention(q, k, v, dout, scale=0.25, causal=True).dv.abs()
    bound = accuracy.bounds(q, k, v, dout, causal=True, policy="kernel")["dv"]
    assert bool((stored_as_zero <= bound.likely(1e-6)).all())
    assert bool((stored_as_zero <= bound.certain).all())


def test_without_dout_there_are_bounds_of_out_and_lse_alone() -> None:
    q, k, v = (torch.randn(1, 8, 2, 8) for _ in range(3))
    assert set(accuracy.bounds(q, k, v)) == {"out", "lse"}
