"""A rank's first partial sees no key (lse = -inf) and is merged by sigmoid and logsigmoid: -inf - (-inf) is NaN.

Several projects with the merge of ring-flash-attention #34 that do not skip hidden blocks.
"""

import torch
from torch import Tensor

from accuracy.core.precision import Precision
from accuracy.selfcheck.fault.base import computing_hidden_blocks
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
EXPECTED = {"lse": "invalid"}
PRECISION = Precision(ring_order="diagonal_last")


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, hidden blocks and all."""
    return await computing_hidden_blocks(rank, -torch.inf, q, k, v)
