"""Zigzag ring attention: each rank holds one chunk from the front and its mirror from the back.

Block for block as ring-flash-attention's `zigzag_ring_flash_attn_func`; under a full mask a plain ring.
"""

from accuracy.core.masks import Block
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """Keys of an earlier rank: their front chunk for all rows. Of a later rank: both chunks for the back rows."""
    if not rank.visibility.plain:
        return rank.blocks_between(source, length)
    whole, front, back = slice(0, length), slice(0, length // 2), slice(length // 2, length)
    if not rank.causal:
        return [Block(whole, whole, causal=False)]
    if source == rank.world.rank:
        return [Block(whole, whole, causal=True)]
    if source < rank.world.rank:
        return [Block(whole, front, causal=False)]
    return [Block(back, whole, causal=False)]


SCHEDULE = Ring(blocks=blocks, shardings=("zigzag",))
