"""te_p2p with a planted fault: keys of later ranks are merged into the front half of the queries, not the back."""

from dataclasses import replace

from accuracy.core.masks import Block
from accuracy.variant import te_p2p, zigzag
from accuracy.variant.base import Rank


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    right = zigzag.blocks(rank, source, length)
    front = slice(0, length // 2)
    return [replace(block, query=front) for block in right] if source > rank.world.rank else right


SCHEDULE = replace(te_p2p.SCHEDULE, blocks=blocks)
