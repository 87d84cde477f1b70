"""The product of unnormalised weights and values is rounded to 16 bits before it is divided by the row's sum.

Where several weights are exactly 1 and the values have one sign, that rounding is biased: a sum of two values needs
one bit more than they have, and the small weights push every tie the same way (Qiu and Yao 2025, arXiv 2510.04212).
"""

from typing import Any

from torch import Tensor

from accuracy.selfcheck.fault.base import BrokenKernel, apply, softmax, with_kernel
from accuracy.variant import ring
from accuracy.variant.base import Rank
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, SHARDINGS, backward, unsupported
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "EXPECTED",
    "FORWARD_PLACES",
    "PRECISION",
    "SHARDING",
    "SHARDINGS",
    "backward",
    "forward",
    "unsupported",
]

SHARDING = "contiguous"
EXPECTED = {"out": "biased", "delta": "biased"}


class Broken(BrokenKernel):
    """A kernel whose forward is broken."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""

        weights, _ = softmax(q, k, how["scale"], how["causal"])
        top = weights.amax(-1, keepdim=True)
        product = apply(weights / top, v).to(q.dtype).double()
        out = product * top.squeeze(-1).transpose(1, 2)[..., None]
        return out.to(how["out_dtype"]), self.kernel.forward(q, k, v, **how)[1]


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.forward(with_kernel(rank, Broken), q, k, v)
