"""The sqrt form where it is known what a backward reads: near on rows that are nearly one-hot.

And of float32 products as three in TF32, which a tensor core sums and cuts off, as torch's memory-efficient kernel
takes them on a GPU: their emulation in the experiment `tolerances` is within the bounds of its policy.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.core import plugins
from accuracy.core.case import Problem
from accuracy.inputs import drawing
from accuracy.kernel.eager import Eager
from accuracy.kernel.torch_math import TorchMath
from accuracy.reference.float64 import attention
from tests.unit.bound import memory_efficient
from tests.unit.bound.test_bounds import HOW, TENSORS, beyond, drawn, results

PROBLEM = Problem(1, 256, 4, 4, 64, "causal", 64**-0.5)
ONE_HEAD: dict[str, Any] = {"scale": PROBLEM.softmax_scale, "causal": True}
PEAKED = ("peaked", "attention_sink", "rising_maxima")
KERNELS = {"lse": Eager(), "weights": TorchMath()}


def rounding(reads: str, dtype: str) -> policy.Policy:
    return policy.kernel(dtype, reads=reads, weights="float32" if reads == "weights" else dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("inputs", PEAKED)
@pytest.mark.parametrize("reads", KERNELS)
def test_it_is_near_and_holds_where_rows_are_nearly_one_hot(reads: str, inputs: str, dtype: str) -> None:
    """Median over the root mean square of a row's errors: at most 16.4 here (float32, rising_maxima, torch_math); on
    peaked inputs, where a third of the rows are one-hot and round less, 21.2 (float32, out of torch_math)."""
    tensors, reference = drawn(inputs, dtype)
    q, k, v, dout = tensors.tensors
    bound = bounds(q, k, v, dout, reference, rounding(reads, dtype), **HOW)
    found = results(KERNELS[reads], tensors)
    assert not beyond(found, reference, bound, certain=False)
    for name in ("out", "dq"):
        error = found[name].double() - getattr(reference, name)
        ratio = bound[name].likely(1e-6) / error.square().mean(-1, keepdim=True).sqrt()
        assert float(ratio.nanmedian()) <= 22, name
    unknown = bounds(*tensors.tensors, reference, rounding("anything", dtype), **HOW)
    assert reads == "weights" or all(torch.equal(bound[name].certain, unknown[name].certain) for name in TENSORS)


def test_an_lse_that_is_rounded_is_beyond_it() -> None:
    """An lse in bfloat16 between forward and backward of float32 inputs, or P of the backward in bfloat16."""
    tensors, reference = drawn("peaked", "float32")
    q, k, v, dout = tensors.tensors
    bound = bounds(q, k, v, dout, reference, rounding("lse", "float32"), **HOW)
    out, lse = KERNELS["lse"].forward(q, k, v, out_dtype=q.dtype, **HOW)

    def gradients(kernel: Eager, lse: Tensor) -> set[str]:
        found = kernel.backward(dout, q, k, v, out, lse, gradient_dtype=q.dtype, **HOW)
        return beyond(dict(zip(("dq", "dk", "dv"), found, strict=True)), reference, bound, certain=False)

    assert gradients(Eager(), lse) == set()
    assert gradients(Eager(), lse.bfloat16().float()) == {"dq", "dk", "dv"}
    assert gradients(Eager(probability_dtype="bfloat16"), lse) == {"dq", "dk", "dv"}


def test_what_is_lost_of_a_product_is_within_its_certain_bound() -> None:
    """Of values of any size, and of one sign with all bits set, of which most is cut off."""
    generator = torch.Generator().manual_seed(0)
    size = 2.0 ** torch.randint(-9, 9, (40, 72), generator=generator)
    full = torch.full((4, 72), 2 - 2.0**-23)
    for x in (torch.randn(40, 72, generator=generator) * size, full):
        exact, most = x.double() @ x.double().T, x.double().abs() @ x.double().abs().T
        lost = (memory_efficient.split_product(x, x).double() - exact).abs()
        allowed = policy.grown(policy.split_products("float32").chain(72), 2.0**-24)
        assert bool((lost <= allowed * most).all())


@pytest.mark.stress(1)
@pytest.mark.parametrize("inputs", ["uniform", "rising_maxima"])
def test_all_that_three_products_in_tf32_give_is_within_a_near_bound(inputs: str) -> None:
    """Sums of one sign lose most; scores that rise shift lse. Of each tensor the median is at most 15."""
    part = plugins.default_part(f"accuracy.inputs.distributions:{inputs}")
    given = drawing.round_to(drawing.draw(part, PROBLEM, 0), "float32", "cpu")
    tensors = drawing.Inputs(*(x[:, :, :1].contiguous() for x in given.tensors))
    reference = attention(*tensors.tensors, **ONE_HEAD)
    found = memory_efficient.emulation(tensors, ONE_HEAD["scale"])
    stated = replace(policy.split_products("float32"), reads="lse")
    for name, bound in bounds(*tensors.tensors, reference, stated, **ONE_HEAD).items():
        error, likely = (found[name].double() - getattr(reference, name)).abs(), bound.likely(1e-6)
        assert not bool((error > torch.minimum(bound.certain, likely)).any())
        square = error.square()
        size = (square.mean(-1, keepdim=True) if error.dim() == 4 else square.mean()).sqrt().expand_as(error)
        assert float(torch.where(size > 0, likely / size, torch.nan).nanmedian()) <= 15
