"""What torch's memory-efficient kernel does on a GPU: float32 products as three in TF32, which a tensor core sums and
cuts off, and P stored in 16 bits before dS is made of it. Its emulation is within the bounds of its policy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.core import plugins
from accuracy.core.case import Problem
from accuracy.inputs import drawing
from accuracy.inputs.distributions import rising_maxima
from accuracy.reference.float64 import Reference, attention
from tests.bound import memory_efficient

PROBLEM = Problem(1, 256, 4, 4, 64, "causal", 64**-0.5)
HOW: dict[str, Any] = {"scale": PROBLEM.softmax_scale, "causal": True}


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


def test_cut_sums_have_a_bound_of_their_own() -> None:
    """On rising scores lse is 4 units of 2^-24 too small in the mean, beyond what sums in float32 are likely to do."""
    generator, shape, how = np.random.default_rng(0), (1, 256, 1, 64), {"scale": 0.125, "causal": True}
    q, k, v, dout = (torch.tensor(rising_maxima(generator, shape, each)).float() for each in ("q", "k", "v", "dout"))
    reference = attention(q, k, v, dout, **how)
    error = memory_efficient.lse(q[0, :, 0], k[0, :, 0], 0.125).double() - reference.lse[0, 0]
    plain, split = (
        bounds(q, k, v, dout, reference, rounding("float32"), **how)["lse"]
        for rounding in (policy.kernel, policy.split_products)
    )
    assert float((error / reference.lse[0, 0].abs()).mean()) < -3 * 2.0**-24
    assert bool((error.abs() > plain.likely(1e-6)).any())
    assert not bool((error.abs() > split.likely(1e-6)).any())
    assert float((split.likely(1e-6) / error.square().mean().sqrt()).median()) <= 15


@pytest.mark.parametrize("inputs", ["uniform", "rising_maxima"])
def test_all_that_three_products_in_tf32_give_is_within_a_near_bound(inputs: str) -> None:
    """Sums of one sign lose most; scores that rise shift lse. Of each tensor the median is at most 15."""
    tensors, reference = one_head(inputs, "float32")
    found = memory_efficient.emulation(tensors, HOW["scale"])
    stated = replace(policy.split_products("float32"), reads="lse")
    for name, bound in bounds(*tensors.tensors, reference, stated, **HOW).items():
        error, likely = (found[name].double() - getattr(reference, name)).abs(), bound.likely(1e-6)
        assert not bool((error > bound.certain).any())
        assert not bool((error > likely).any())
        square = error.square()
        size = (square.mean(-1, keepdim=True) if error.dim() == 4 else square.mean()).sqrt().expand_as(error)
        assert float(torch.where(size > 0, likely / size, torch.nan).nanmedian()) <= 15


def test_weights_below_float16_s_normal_numbers_have_a_bound_of_their_own() -> None:
    """dk of nearly one-hot rows, of P stored before dS is made of it: beyond what storing dS alone is likely to do."""
    tensors, reference = one_head("peaked", "float16", seed=2, head=3)
    error = (memory_efficient.emulation(tensors, HOW["scale"])["dk"].double() - reference.dk).abs()
    for stated, allowed in ((policy.kernel("float16"), False), (policy.split_products("float16"), True)):
        bound = bounds(*tensors.tensors, reference, replace(stated, reads="lse"), **HOW)["dk"]
        assert bool((error <= bound.likely(1e-6)).all()) is allowed


def test_a_weight_that_is_stored_as_another_is_within_the_certain_bound() -> None:
    """P of the second key is 1.4 x 2^-25 and is stored as 2^-24: dS, made of it, is 1.4 times too large."""
    q, k, v, dout = (torch.zeros(1, length, 1, 8, dtype=torch.float16) for length in (1, 2, 2, 1))
    q[..., 0], k[:, 1, :, 0], v[:, 1, :, 0], dout[..., 0] = 1.0, -17.0, 512.0, 512.0
    reference = attention(q, k, v, dout, scale=1.0, causal=False)
    p = (q[0, :, 0].double() @ k[0, :, 0].double().T).softmax(1).half().double()
    ds = (p * (dout[0, :, 0].double() @ v[0, :, 0].double().T - reference.delta[0, 0, 0])).half()
    error = (ds.double().T @ q[0, :, 0].double() - reference.dk[0, :, 0]).abs()
    assert float(error.max() / reference.dk.abs().max()) > 0.3
    bound = bounds(q, k, v, dout, reference, policy.split_products("float16"), scale=1.0, causal=False)["dk"]
    assert bool((error <= bound.certain[0, :, 0]).all())


def one_head(name: str, dtype: str, seed: int = 0, head: int = 0) -> tuple[drawing.Inputs, Reference]:
    """One head of the inputs of experiments/tolerances."""
    part = plugins.default_part(f"accuracy.inputs.distributions:{name}")
    drawn = drawing.round_to(drawing.draw(part, PROBLEM, seed), dtype, "cpu")
    tensors = drawing.Inputs(*(x[:, :, head : head + 1].contiguous() for x in drawn.tensors))
    return tensors, attention(*tensors.tensors, **HOW)
