"""Blockwise chunks inside each step of a ring: what ring-flash-attention #24 attempted, with a right backward.

Every chunk's gradient goes straight into its accumulator; no buffer is reused between hops, so none can be stale.
"""

from torch import Tensor

from accuracy.core.case import Case
from accuracy.variant.base import Rank
from accuracy.variant.bpt import Options, chunked, chunks_too_small
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, ring_backward, ring_forward
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "FEATURES",
    "FORWARD_PLACES",
    "PRECISION",
    "RING_BLOCKS",
    "SHARDINGS",
    "Options",
    "backward",
    "chunked",
    "forward",
    "unsupported",
]

FEATURES = ("window", "documents", "softcap")
SHARDINGS = ("contiguous",)


def unsupported(case: Case) -> str | None:
    """Chunks of at least one token."""
    return chunks_too_small(case)


RING_BLOCKS = chunked


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """Shards of q (B, S/W, H, D), k, v (B, S/W, Hk, D) -> out (B, S/W, H, D), lse (B, H, S/W)."""
    return await ring_forward(rank, chunked, q, k, v)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """Shards -> dq (B, S/W, H, D), dk, dv (B, S/W, Hk, D)."""
    return await ring_backward(rank, chunked, dout, q, k, v, out, lse)
