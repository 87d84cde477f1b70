"""Blockwise parallel attention on one device: chunks of queries against chunks of keys, joined outside the kernel.

Liu and Abbeel 2023 (arXiv 2305.19370). The last chunks may be shorter.
"""

from dataclasses import dataclass

from accuracy.core.dtype import Whole
from accuracy.core.masks import Block, Range, Visibility
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring


@dataclass(frozen=True)
class Chunks:
    """Chunk sizes in tokens; of a rank's tokens, at most all."""

    query_chunk: Whole = 128
    key_chunk: Whole = 64


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """`pairs` of this rank's queries and the keys of rank `source`, each with `length` tokens, in local positions."""
    rows, columns = rank.world.rank * length, source * length
    found = pairs(rank.options, rank.visibility, (rows, rows + length), (columns, columns + length))
    return [block.shifted(rows, columns) for block in found]


def pairs(chunks: Chunks, visibility: Visibility, query: Range, key: Range) -> list[Block]:
    """All pairs of chunks of queries [a, b) and keys [c, d) that see each other, keys in order for each row chunk."""
    return [
        block
        for rows in _cut(query, chunks.query_chunk)
        for columns in _cut(key, chunks.key_chunk)
        for block in visibility.blocks(rows, columns)
    ]


def _cut(whole: Range, chunk: int) -> list[Range]:
    return [(begin, min(begin + chunk, whole[1])) for begin in range(*whole, chunk)]


class Blockwise(Ring):
    """A ring of chunks."""


SCHEDULE = Blockwise(
    blocks=blocks,
    options=Chunks,
    one_device=True,
    forward_places=("partial", "out_accumulator", "lse", "merge"),  # the ring's, less what only travel rounds
    backward_places=("gradient_partial", "dq_accumulator", "dkv_accumulator"),
)
