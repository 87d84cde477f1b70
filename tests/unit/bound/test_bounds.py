"""Bounds hold for every healthy kernel, on all inputs, and are near enough to prove faults."""

import warnings
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import accuracy
from accuracy import assert_close
from accuracy.bound import policy
from accuracy.bound.policy import Policy
from accuracy.bound.running import Bound, bounds
from accuracy.core import plugins
from accuracy.core.case import Problem
from accuracy.inputs import drawing
from accuracy.kernel.base import Kernel
from accuracy.kernel.chunked import Chunked
from accuracy.kernel.eager import Eager
from accuracy.kernel.in_torch import TorchFlash, TorchMath
from accuracy.reference import float64
from accuracy.reference.float64 import Reference, attention
from tests.contract.reference import exact
from tests.strangers import attend, refused

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
    """torch's flash kernel on a CPU: dq, dk and dv are sums in the inputs' dtype over tiles of rows, of fewer than 192
    rows 32 (`q_split_size` of ATen/native/cpu/FlashAttentionKernel.cpp), and exp of 16-bit inputs is a fast one."""
    if kernel != "flash":
        return policy.kernel(dtype)
    return policy.kernel(dtype, gradient_tile=32, exponential=4.0 if dtype == "float32" else policy.FAST_EXPONENTIAL)


def results(kernel: Kernel, inputs: drawing.Inputs, scale: float = PROBLEM.softmax_scale) -> dict[str, Tensor]:
    (q, k, v, dout), how = inputs.tensors, {"scale": scale, "causal": True}
    out, lse = kernel.forward(q, k, v, out_dtype=q.dtype, **how)
    gradients = kernel.backward(dout, q, k, v, out, lse, gradient_dtype=q.dtype, **how)
    return dict(zip(TENSORS, (out, lse, *gradients), strict=True))


def beyond(found: dict[str, Tensor], reference: Reference, bound: dict[str, Bound], *, certain: bool) -> set[str]:
    """The tensors with an error beyond the certain bound, or beyond the one that 1 in 10^6 may exceed."""
    limits = {name: bound[name].certain if certain else bound[name].likely(1e-6) for name in found}
    return {name for name, x in found.items() if ((x.double() - getattr(reference, name)).abs() > limits[name]).any()}


@pytest.mark.stress(14, "kernel", "inputs", "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", ORDINARY + ALIKE)
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_error_of_a_healthy_kernel_is_beyond_its_bound(kernel: str, inputs: str, dtype: str) -> None:
    """Neither the certain one nor, where errors are independent, the one that 1e-6 of 43,000 elements may exceed. On
    Gaussian inputs the median of this one is at most 15 times the root mean square of the errors in an element's row,
    of lse of all rows."""
    tensors, reference = drawn(inputs, dtype)
    found = results(KERNELS[kernel], tensors)
    bound = bounds(*tensors.tensors, reference, policy_of(kernel, dtype), **HOW)
    assert not beyond(found, reference, bound, certain=True)
    if inputs in ORDINARY:
        assert not beyond(found, reference, bound, certain=False)
    for name, x in found.items() if inputs == "gaussian" else ():
        square = (x.double() - getattr(reference, name)).square()
        size = (square.mean() if name == "lse" else square.mean(-1, keepdim=True)).sqrt()
        assert float((bound[name].likely(1e-6) / size).nanmedian()) <= 15, name


@pytest.mark.parametrize(("dtype", "factor"), [("float32", 1.01), ("float16", 1.5)])
def test_a_factor_is_proven_wrong_even_of_the_loosest_function(dtype: str, factor: float) -> None:
    tensors, reference = drawn("gaussian", dtype)
    found = results(KERNELS["eager"], tensors)
    bound = bounds(*tensors.tensors, reference, policy.loosest(dtype), **HOW)
    assert not beyond(found, reference, bound, certain=True)
    for tensor in ("out", "dq", "dk", "dv"):
        assert beyond(found | {tensor: found[tensor] * factor}, reference, bound, certain=True) == {tensor}


def test_sums_that_a_policy_does_not_have_are_beyond_its_bound() -> None:
    """Running sums in bfloat16 of float32 inputs: no kernel that sums in float32 gives that."""
    tensors, reference = drawn("gaussian", "float32")
    found = results(Chunked(key_chunk=24, accumulator_dtype="bfloat16"), tensors)
    bound = bounds(*tensors.tensors, reference, policy.kernel("float32"), **HOW)
    assert {"out", "dq"} <= beyond(found, reference, bound, certain=True)


def test_float64_is_within_its_certain_bound_in_50_digits() -> None:
    """Every kernel; a factor of 1 + 2^-38 on any tensor is not."""
    q, k, v, dout = (x.double() for x in exact.problem(3, heads=1))
    how: dict[str, Any] = {"scale": q.shape[-1] ** -0.5, "causal": True}
    truth = exact.exact(*exact.of_head(0, q, k, v, dout), *how.values())
    bound = bounds(q, k, v, dout, attention(q, k, v, dout, **how), policy.kernel("float64"), **how)

    def beyond_digits(name: str, x: Tensor) -> int:
        digits = [each for row in truth[name] for each in (row if isinstance(row, list) else [row])]
        rows = zip(x.flatten().tolist(), digits, bound[name].certain.flatten().tolist(), strict=True)
        return sum(abs(given - value) > limit for given, value, limit in rows)

    for word, kernel in KERNELS.items():
        for name, x in results(kernel, drawing.Inputs(q, k, v, dout), scale=how["scale"]).items():
            assert not beyond_digits(name, x), (word, name)
            assert beyond_digits(name, x * (1 + 2.0**-38)), (word, name)


def test_what_a_device_stores_as_zero_is_within_its_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 8, 1, 16, generator=generator).bfloat16() for _ in range(3))
    dout = torch.full_like(q, 3e-39)
    stored_as_zero = attention(q, k, v, dout, scale=0.25, causal=True).dv.abs()
    bound = accuracy.bounds(q, k, v, dout, causal=True, policy="kernel")["dv"]
    assert bool((stored_as_zero <= torch.minimum(bound.likely(1e-6), bound.certain)).all())
    assert set(accuracy.bounds(q, k, v)) == {"out", "lse"}


@pytest.mark.parametrize("head_dim", [128, 512])
def test_dims_of_a_row_share_their_errors_however_many_they_are(head_dim: int) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        q, k, v, dout = (torch.randn(1, 2, 64, head_dim, generator=generator) for _ in range(4))
        accuracy.assert_close(attend, 3 * q, 3 * k, v, dout=dout, causal=True, layout="bhsd")


SHAPE = (1, 96, 2, 16)


@pytest.mark.parametrize(
    ("dtype", "against", "factor"), [("bfloat16", "float64", 2**-4), ("float32", "float32", 2**-18)]
)
def test_healthy_kernels_of_other_seeds_pass_and_faults_do_not(dtype: str, against: str, factor: float) -> None:
    """2^-4 is 16 roundoffs of bfloat16: scores and weights in it take 2 or 3, six standard deviations the rest. For
    one kernel it is stricter."""
    rows = accuracy.tolerance(SHAPE, dtype, heads_kv=1, against=against, seeds=4).set_index("tensor")
    assert rows.index.to_list() == [*TENSORS]
    assert (rows["false_alarms"] == 0).all()
    assert (rows["at_most"] == 3 / rows["runs"]).all()
    assert rows["runs"].min() >= 4 * 4  # eager, chunked, torch's two
    assert rows[["zeros", "shifted"]].all(axis=None)
    assert (rows["least_factor"] <= factor).all()
    assert (rows["least_factor_elements"].fillna(1) >= rows["least_factor"]).all()
    assert (rows[["atol", "relative", "row_rms"]] > 0).all(axis=None)
    if dtype == "bfloat16":
        mine = accuracy.tolerance(SHAPE, dtype, heads_kv=1, kernel="torch_math", seeds=3).set_index("tensor")
        assert (mine["relative"] < rows["relative"])[["out", "dq", "dk"]].all()


def in_its_own_dtype(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float) -> tuple[Tensor, ...]:
    """Causal, in the inputs' dtype: out, dq, dk, dv."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, _ = attend(q, k, v, causal=True, scale=scale, wide=q.dtype)
    return out, *torch.autograd.grad(out, (q, k, v), dout)


@pytest.mark.parametrize(("name", "dtype", "times", "doubled"), [
    ("peaked", "float16", (1, 1, 30, 30), "dv"), ("uniform", "float16", (1, 1, 1e-3, 1e-3), "dv"),
    ("sum_loss", "float16", (1, 1, 1e-3, 1e-3), "dv"), ("gaussian", "bfloat16", (8, 32, 1, 1), "actual"),
])  # fmt: skip
def test_attention_in_16_bits_alone_is_accepted_and_a_doubled_tensor_is_not(
    name: str, dtype: str, times: tuple[float, ...], doubled: str
) -> None:
    """Weights that are stored as another number, a dS most of which is stored as zero; scores of a thousand are off by
    several units: a small weight by e to them, which no variance of the exponent says. times: of q, k, v and dout."""
    q, k, v, dout = (x * factor for x, factor in zip(drawn(name, dtype)[0].tensors, times, strict=True))
    how = {"q": q, "k": k, "v": v, "dout": dout, "causal": True}
    results = in_its_own_dtype(q, k, v, dout, PROBLEM.softmax_scale)
    found: dict[str, Any] = dict(zip(("actual", "dq", "dk", "dv"), results, strict=True))
    assert_close(**found, **how)
    says = f"{doubled.replace('actual', 'out')} is wrong"
    refused(says, **how, **found | {doubled: 2 * found[doubled]})


def test_a_weight_that_is_stored_as_another_is_accepted() -> None:
    """P of the second key is 1.4 x 2^-25 and is stored as 2^-24: dk, made of it, is 1.4 times too large."""
    q, k, v, dout = (torch.zeros(1, length, 1, 8, dtype=torch.float16) for length in (1, 2, 2, 1))
    q[..., 0], k[:, 1, :, 0], v[:, 1, :, 0], dout[..., 0] = 1.0, -17.0, 128.0, 128.0
    out, dq, dk, dv = in_its_own_dtype(q, k, v, dout, 1.0)
    assert_close(out, q, k, v, dout=dout, dq=dq, dk=dk, dv=dv, causal=True, softmax_scale=1.0)
    how = {"scale": 1.0, "causal": True}
    reference = float64.attention(q, k, v, dout, **how)
    assert float((dk - reference.dk).abs().max() / reference.dk.abs().max()) > 0.3
    bound = bounds(q, k, v, dout, reference, policy.kernel("float16", weight_roundings=2), **how)["dk"]
    assert bool(((dk - reference.dk).abs() <= bound.certain).all())


@pytest.mark.parametrize(("times", "unlimited"), [(8, ()), (100, ("dq", "dk"))])
def test_a_tensor_that_no_bound_judges_is_named(times: int, unlimited: tuple[str, ...]) -> None:
    q, k, v, dout = (x.mul(times).bfloat16() for x in torch.randn(4, 1, 64, 2, 32, generator=torch.manual_seed(0)))
    exact = attention(q, k, v, dout, causal=True, scale=32**-0.5)
    found = {name: getattr(exact, name).bfloat16() for name in ("out", "dq", "dk", "dv")}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert_close(found.pop("out"), q, k, v, dout=dout, causal=True, **found)
    assert [str(each.message).partition(" cannot")[0] for each in told] == ([", ".join(unlimited)] if unlimited else [])
