"""Striped attention: rank r holds every W-th token, so that every block is a causal one.

Brandon et al. 2023 (arXiv 2311.09431), block for block as ring-flash-attention's `stripe_flash_attn_func`. A stripe has
no runs of consecutive tokens: a window or a document is no mask of a block.
"""

from accuracy.core.masks import Block
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """Row i sees keys up to i of its own and earlier ranks, up to i - 1 of later ones."""
    if not rank.causal or source <= rank.world.rank:
        return [Block(slice(0, length), slice(0, length), causal=rank.causal)]
    if length == 1:
        return []
    return [Block(slice(1, length), slice(0, length - 1), causal=True)]


SCHEDULE = Ring(blocks=blocks, shardings=("striped",), features=("softcap", "head_dim_v", "sinks"))
