"""lse comes as (B, S, H) and is read as (B, H, S): heads read as tokens.

flash-attention 2.6's varlen lse, ring-flash-attention #44 and #46.
"""

from typing import Any

from torch import Tensor

from accuracy.selfcheck.fault.base import BrokenKernel, with_kernel
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
EXPECTED = {"out": "logic", "lse": "logic"}


class Broken(BrokenKernel):
    """A kernel whose forward is broken."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""

        out, lse = self.kernel.forward(q, k, v, **how)
        return out, lse.transpose(1, 2).contiguous().view(lse.shape)


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.forward(with_kernel(rank, Broken), q, k, v)
