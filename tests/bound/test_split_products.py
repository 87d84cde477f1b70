"""Float32 products as three in TF32, which a tensor core sums and cuts off: errors that float32's sums do not have."""

import numpy as np
import torch

from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.inputs.rising_maxima import Options, draw
from accuracy.reference.float64 import attention
from experiments.tolerances import three_tf32


def test_what_is_lost_of_a_product_is_within_its_certain_bound() -> None:
    """Of values of any size, and of one sign with all bits set, of which most is cut off."""
    generator = torch.Generator().manual_seed(0)
    size = 2.0 ** torch.randint(-9, 9, (40, 72), generator=generator)
    full = torch.full((4, 72), 2 - 2.0**-23)
    for x in (torch.randn(40, 72, generator=generator) * size, full):
        exact, most = x.double() @ x.double().T, x.double().abs() @ x.double().abs().T
        lost = (three_tf32.product(x, x).double() - exact).abs()
        allowed = policy.grown(policy.split_products("float32").chain(72), 2.0**-24)
        assert bool((lost <= allowed * most).all())


def test_cut_sums_have_a_bound_of_their_own() -> None:
    """On rising scores lse is 4 units of 2^-24 too small in the mean, beyond what sums in float32 are likely to do."""
    generator, shape, how = np.random.default_rng(0), (1, 256, 1, 64), {"scale": 0.125, "causal": True}
    q, k, v, dout = (torch.tensor(draw(generator, shape, each, Options())).float() for each in ("q", "k", "v", "dout"))
    reference = attention(q, k, v, dout, **how)
    error = three_tf32.lse(q[0, :, 0], k[0, :, 0], 0.125).double() - reference.lse[0, 0]
    plain, split = (
        bounds(q, k, v, dout, reference, rounding("float32"), **how)["lse"]
        for rounding in (policy.kernel, policy.split_products)
    )
    assert float((error / reference.lse[0, 0].abs()).mean()) < -3 * 2.0**-24
    assert bool((error.abs() > plain.likely(1e-6)).any())
    assert not bool((error.abs() > split.likely(1e-6)).any())
    assert float((split.likely(1e-6) / error.square().mean().sqrt()).median()) <= 15
