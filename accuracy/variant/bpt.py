"""Blockwise parallel attention on one device: chunks of queries against chunks of keys, joined outside the kernel.

Liu and Abbeel 2023 (arXiv 2305.19370). The last chunks may be shorter.
"""

from dataclasses import dataclass

from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS
from accuracy.core.masks import Block, Range, Visibility
from accuracy.variant.base import Rank
from accuracy.variant.ring import COPIED_ELEMENTS, Ring


@dataclass(frozen=True)
class Chunks:
    """Chunk sizes in tokens; of a rank's tokens, at most all."""

    query_chunk: int = 128
    key_chunk: int = 64

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if min(self.query_chunk, self.key_chunk) < 1:
            raise ValueError(f"query_chunk={self.query_chunk}, key_chunk={self.key_chunk}; allowed: from 1")


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

    def held_bytes(self, case: Case) -> int:
        """Rows repeated for chunks of keys, and keys for chunks of rows, of all ranks of a simulated world: eight."""
        if case.world != "simulated":
            return 0
        problem, wide = case.problem, case.problem.heads * max(case.problem.head_dim, case.problem.value_dim)
        chunk = int(str(dict(case.variant.options).get("key_chunk", Chunks.key_chunk)))
        repeated = problem.batch * problem.queries * wide * -(-problem.seqlen // (case.world_size * chunk))
        return 8 * min(COPIED_ELEMENTS, repeated) * FORMATS[case.dtype].bytes // case.world_size


SCHEDULE = Blockwise(
    blocks=blocks,
    options=Chunks,
    one_device=True,
    forward_places=("partial", "out_accumulator", "lse", "merge"),  # the ring's, less what only travel rounds
    backward_places=("gradient_partial", "dq_accumulator", "dkv_accumulator"),
)
