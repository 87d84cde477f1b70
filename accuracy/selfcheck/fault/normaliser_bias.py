"""The numerator uses weights cut to fewer bits, the denominator uncut ones: with V = 1 out is a little below 1.

flash-attention PR #2721. Cut two bits behind the inputs' precision, so that the bias is smaller than the rounding.
"""

from typing import Any

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS
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
EXPECTED = {"out": "biased"}


class Broken(BrokenKernel):
    """A kernel whose forward is broken."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""

        weights, _ = softmax(q, k, how["scale"], how["causal"])
        bits = FORMATS[str(q.dtype).removeprefix("torch.")].precision + 2
        mantissa, exponent = torch.frexp(weights)
        cut = torch.ldexp(torch.floor(mantissa * 2.0**bits) / 2.0**bits, exponent)
        return apply(cut, v).to(how["out_dtype"]), self.kernel.forward(q, k, v, **how)[1]


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.forward(with_kernel(rank, Broken), q, k, v)
