"""One key of the sequence is never seen by other ranks: an off-by-one bound of a block.

Invented; the least fault there is.
"""

from torch import Tensor

from accuracy.core.masks import Block
from accuracy.variant.base import Rank
from accuracy.variant.ring import (
    BACKWARD_PLACES,
    FORWARD_PLACES,
    PRECISION,
    SHARDINGS,
    ring_backward,
    ring_forward,
    unsupported,
)
from accuracy.variant.ring import blocks as healthy_blocks
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
EXPECTED = {"out": "logic", "lse": "logic", "dq": "logic", "dk": "logic", "dv": "logic"}


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """The ring's, without the last key of the first rank."""
    found = healthy_blocks(rank, source, length)
    if source > 0 or rank.world.rank == 0:
        return found
    return [Block(block.query, slice(0, length - 1), block.causal) for block in found]


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, with these blocks."""
    return await ring_forward(rank, blocks, q, k, v)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, with these blocks."""
    return await ring_backward(rank, blocks, dout, q, k, v, out, lse)
