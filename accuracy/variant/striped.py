"""Striped attention: rank r holds every W-th token, so that every block is a causal one.

Brandon et al. 2023 (arXiv 2311.09431), block for block as ring-flash-attention's `stripe_flash_attn_func`: keys of a
later rank are seen from one row further down.
"""

from torch import Tensor

from accuracy.core.masks import Block
from accuracy.variant.base import Rank
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, ring_backward, ring_forward, unsupported
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "FEATURES",
    "FORWARD_PLACES",
    "PRECISION",
    "RING_BLOCKS",
    "SHARDINGS",
    "backward",
    "blocks",
    "forward",
    "unsupported",
]

SHARDINGS = ("striped",)
FEATURES = ("softcap",)  # a stripe has no runs of consecutive tokens: a window or a document is no mask of a block


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """Row i sees keys up to i of its own and earlier ranks, up to i - 1 of later ones."""
    if not rank.causal or source <= rank.world.rank:
        return [Block(slice(0, length), slice(0, length), causal=rank.causal)]
    if length == 1:
        return []
    return [Block(slice(1, length), slice(0, length - 1), causal=True)]


RING_BLOCKS = blocks


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """Shards of q (B, S/W, H, D), k, v (B, S/W, Hk, D) -> out (B, S/W, H, D), lse (B, H, S/W)."""
    return await ring_forward(rank, blocks, q, k, v)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """Shards -> dq (B, S/W, H, D), dk, dv (B, S/W, Hk, D)."""
    return await ring_backward(rank, blocks, dout, q, k, v, out, lse)
