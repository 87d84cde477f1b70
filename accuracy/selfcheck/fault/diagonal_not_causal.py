"""The diagonal block has `causal=False` hard-coded: future tokens leak, forward and backward agree with each other.

yunchang's FA3 wrapper.
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
    """The ring's, none of them causal."""
    return [Block(block.query, block.key, causal=False) for block in healthy_blocks(rank, source, length)]


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, with these blocks."""
    return await ring_forward(rank, blocks, q, k, v)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, with these blocks."""
    return await ring_backward(rank, blocks, dout, q, k, v, out, lse)
