"""dk and dv are summed over one more slot than was written: what memory held, NaN or not, is added.

NSA-triton #27, for some ratios of heads.
"""

from typing import Any

from torch import Tensor

from accuracy.selfcheck.fault.base import BrokenKernel, unwritten, with_kernel
from accuracy.variant import ring
from accuracy.variant.base import Rank
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, SHARDINGS, forward, unsupported
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
EXPECTED = {"dk": "invalid", "dv": "invalid"}


class Broken(BrokenKernel):
    """A kernel whose backward is broken."""

    def backward(self, *tensors: Tensor, **how: Any) -> Tensors:
        """See `Kernel.backward`."""

        dq, *pair = self.kernel.backward(*tensors, **how)
        sums = []
        for x in pair:
            slots = unwritten((2, *x.shape), x)
            slots[0] = x
            sums.append(slots.sum(0))
        return dq, *sums


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.backward(with_kernel(rank, Broken), dout, q, k, v, out, lse)
