"""Keys and values are padded to a multiple of 32 with memory that nobody zeroed, and the padding is attended to.

TransformerEngine 9c127ef: padded v real lengths.
"""

from typing import Any

from torch import Tensor

from accuracy.selfcheck.fault.base import BrokenKernel, unwritten, with_kernel
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
EXPECTED = {"out": "invalid", "lse": "invalid"}


class Broken(BrokenKernel):
    """A kernel whose forward is broken."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""

        if how["causal"]:
            return self.kernel.forward(q, k, v, **how)
        padded = [unwritten((x.shape[0], -(-x.shape[1] // 32) * 32, *x.shape[2:]), x) for x in (k, v)]
        for buffer, x in zip(padded, (k, v), strict=True):
            buffer[:, : x.shape[1]] = x
        return self.kernel.forward(q, *padded, **how)


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.forward(with_kernel(rank, Broken), q, k, v)
