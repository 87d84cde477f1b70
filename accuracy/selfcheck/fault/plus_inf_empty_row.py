"""A row without keys has lse = +inf, as flash-attention 2 gives it: it outweighs every other partial, and out is 0.

flash-attention 2 v 3, flash-attention PR #978.
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
EXPECTED = {"out": "logic"}
PRECISION = Precision(ring_order="diagonal_last")


def merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Guarded against empty partials, as long as log 0 is -inf."""
    joint = torch.logaddexp(lse, block_lse)
    weight, block_weight = (torch.exp(each - joint).nan_to_num(nan=0.0) for each in (lse, block_lse))
    return weight * out + block_weight * block_out, joint


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, hidden blocks and all."""
    return await computing_hidden_blocks(joined_by(rank, merge), torch.inf, q, k, v)
