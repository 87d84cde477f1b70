"""The causal mask of fewer queries than keys is aligned at the top left, where the schedule means the bottom right.

flash-attention changed its alignment in 2.1.
"""

from typing import Any

import torch
from torch import Tensor

from accuracy.selfcheck.fault.base import BrokenKernel, with_kernel
from accuracy.variant import llama3
from accuracy.variant.base import Rank
from accuracy.variant.llama3 import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, SHARDINGS, Options, unsupported
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "EXPECTED",
    "FORWARD_PLACES",
    "PRECISION",
    "SHARDING",
    "SHARDINGS",
    "Options",
    "backward",
    "forward",
    "unsupported",
]

SHARDING = "contiguous"
EXPECTED = {"out": "logic", "lse": "logic", "dq": "logic", "dk": "logic", "dv": "logic"}


class Broken(BrokenKernel):
    """A kernel that aligns its mask at the first key."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        seen = q.shape[1] if how["causal"] else k.shape[1]
        return self.kernel.forward(q, k[:, :seen], v[:, :seen], **how)

    def backward(self, *tensors: Tensor, **how: Any) -> Tensors:
        """See `Kernel.backward`."""
        dout, q, k, v, out, lse = tensors
        seen = q.shape[1] if how["causal"] else k.shape[1]
        dq, *pair = self.kernel.backward(dout, q, k[:, :seen], v[:, :seen], out, lse, **how)
        return dq, *(torch.nn.functional.pad(x, (0, 0, 0, 0, 0, k.shape[1] - seen)) for x in pair)


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """llama3's, on the broken kernel."""
    return await llama3.forward(with_kernel(rank, Broken), q, k, v)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """llama3's, on the broken kernel."""
    return await llama3.backward(with_kernel(rank, Broken), dout, q, k, v, out, lse)
