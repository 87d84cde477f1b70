"""The diagonal block has `causal=False` hard-coded: future tokens leak, forward and backward agree with each other.

yunchang's FA3 wrapper.
"""

from accuracy.core.masks import Block
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring

EXPECTED = {"out": "logic", "lse": "logic", "dq": "logic", "dk": "logic", "dv": "logic"}


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """The ring's, none of them causal."""
    return [Block(block.query, block.key, causal=False) for block in rank.blocks_between(source, length)]


SCHEDULE = Ring(blocks=blocks)
