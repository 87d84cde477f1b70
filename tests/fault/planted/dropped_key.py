"""One key of the sequence is never seen by other ranks: an off-by-one bound of a block.

Invented; the least fault there is.
"""

from accuracy.core.masks import Block
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring

EXPECTED = {"out": "logic", "lse": "logic", "dq": "logic", "dk": "logic", "dv": "logic"}


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """The ring's, without the last key of the first rank."""
    found = rank.blocks_between(source, length)
    if source > 0 or rank.world.rank == 0:
        return found
    return [Block(block.query, slice(0, length - 1), block.causal) for block in found]


SCHEDULE = Ring(blocks=blocks)
