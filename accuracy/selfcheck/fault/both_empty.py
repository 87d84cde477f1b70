"""Two partials without keys are merged: exp(-inf - (-inf)) is NaN, and out stays NaN.

vLLM #39148, flashinfer #4051.
"""

import torch
from torch import Tensor

from accuracy.core.precision import Precision
from accuracy.selfcheck.fault.base import computing_hidden_blocks, joined_by
from accuracy.variant.base import Rank
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, SHARDINGS, backward, unsupported
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
EXPECTED = {"out": "invalid"}
PRECISION = Precision(ring_order="diagonal_last")


def merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Right but where both are empty."""
    joint = torch.logaddexp(lse, block_lse)
    return torch.exp(lse - joint) * out + torch.exp(block_lse - joint) * block_out, joint


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, hidden blocks and all."""
    return await computing_hidden_blocks(joined_by(rank, merge), -torch.inf, q, k, v)
