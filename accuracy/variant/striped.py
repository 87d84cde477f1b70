"""Striped attention: rank r holds every W-th token, so that every block is a causal one.

Brandon et al. 2023 (arXiv 2311.09431), block for block as ring-flash-attention's `stripe_flash_attn_func`. Row i of
rank r is token i W + r: a document is a run of rows on each rank, and a window is a band in them, which depends on how
far the source's rank is from this one.
"""

from itertools import pairwise

from accuracy.core.masks import Block, banded_blocks
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """Row i sees keys up to i of its own and earlier ranks, up to i - 1 of later ones."""
    if not rank.visibility.plain:
        return _blocks_in_documents(rank, source, length)
    if not rank.causal or source <= rank.world.rank:
        return [Block(slice(0, length), slice(0, length), causal=rank.causal)]
    if length == 1:
        return []
    return [Block(slice(1, length), slice(0, length - 1), causal=True)]


def _blocks_in_documents(rank: Rank, source: int, length: int) -> list[Block]:
    """Document by document, in local rows; see `accuracy.core.masks.banded_blocks`."""
    size, own, window = rank.world.size, rank.world.rank, rank.visibility.window
    before = None if window is None else (window + source - own) // size
    after = None if window is None else (window + own - source) // size
    if rank.causal:
        after = -1 if source > own else 0
    borders = rank.visibility.documents or (0, size * length)
    # the first local row of a rank whose token is not before a border
    runs = [[-(-(border - place) // size) for border in borders] for place in (own, source)]
    return [
        block
        for rows, keys in zip(*map(pairwise, runs), strict=True)
        for block in banded_blocks(rows, keys, before, after)
    ]


SCHEDULE = Ring(blocks=blocks, shardings=("striped",))
