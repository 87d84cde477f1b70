"""A row without keys has a large finite lse instead of -inf: merged with it, the true lse is lost to cancellation.

flashinfer #4401.
"""

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
EXPECTED = {"lse": "logic"}
SENTINEL = -1e30
PRECISION = Precision(ring_order="diagonal_last")


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, hidden blocks and all."""
    return await computing_hidden_blocks(rank, SENTINEL, q, k, v)
