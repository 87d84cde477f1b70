"""Each query head's dk and dv are rounded to the inputs' dtype before the heads of a group are summed.

flash-attention 2's backward: 2.4e-3 where one key/value head a query head has 1.65e-3.
"""

from typing import Any

import torch
from torch import Tensor

from accuracy.selfcheck.fault.base import BrokenKernel, with_kernel
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
EXPECTED = {"dk": "excess_rounding", "dv": "excess_rounding"}


class Broken(BrokenKernel):
    """A kernel whose backward is broken."""

    def backward(self, *tensors: Tensor, **how: Any) -> Tensors:
        """See `Kernel.backward`."""

        dout, q, k, v, out, lse = tensors
        share = q.shape[2] // k.shape[2]
        keys, values = (x.repeat_interleave(share, dim=2) for x in (k, v))
        dq, *pair = self.kernel.backward(dout, q, keys, values, out, lse, **how)
        return dq, *(x.to(q.dtype).unflatten(2, (-1, share)).sum(3, dtype=torch.float64).to(x.dtype) for x in pair)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.backward(with_kernel(rank, Broken), dout, q, k, v, out, lse)
