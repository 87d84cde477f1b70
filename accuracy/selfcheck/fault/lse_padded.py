"""The kernel pads lse to a multiple of 32 rows, the caller reads it as if it had not.

yunchang #122.
"""

from typing import Any

import torch
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
        padded = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32))
        return out, padded.flatten()[: lse.numel()].view(lse.shape)


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.forward(with_kernel(rank, Broken), q, k, v)
