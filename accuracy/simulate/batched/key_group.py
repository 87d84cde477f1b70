"""Blocks of equal shape, one below the other, that see the same keys: one kernel call with the blocks in its batch. The
order of groups is the same for every row and for every key: no merge and no sum comes in another place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from accuracy.core.masks import Block


@dataclass(frozen=True)
class KeyGroup:
    """`count` blocks; block: the first. A tensor of N items becomes one of N count items, a block's rows each."""

    block: Block
    count: int = 1

    @property
    def whole(self) -> Block:
        """All rows."""
        query = self.block.query
        return replace(self.block, query=slice(query.start, query.start + self.count * (query.stop - query.start)))

    @property
    def one(self) -> Block:
        """A block in the tensors that `rows` and `keys` give."""
        query, key = self.block.query, self.block.key
        return replace(self.block, query=slice(0, query.stop - query.start), key=slice(0, key.stop - key.start))

    def pieces(self, count: int) -> list["KeyGroup"]:
        """The same blocks, at most `count` in a group."""
        height = self.block.query.stop - self.block.query.start
        return [
            KeyGroup(self.block.shifted(-first * height, 0), min(count, self.count - first))
            for first in range(0, self.count, count)
        ]

    def rows(self, x: Tensor) -> Tensor:
        """(N, S, H, D) -> (N count, S', H, D)."""
        return x[:, self.whole.query].unflatten(1, (self.count, -1)).flatten(0, 1)

    def keys(self, x: Tensor) -> Tensor:
        """(N, S, Hk, D) -> (N count, S'', Hk, D)."""
        return x[:, self.block.key].repeat_interleave(self.count, dim=0)

    def lse(self, x: Tensor) -> Tensor:
        """(N, H, S) -> (N count, H, S')."""
        return x[:, :, self.whole.query].unflatten(2, (self.count, -1)).movedim(2, 1).flatten(0, 1)

    def joined_rows(self, x: Tensor) -> Tensor:
        """(N count, S', H, D) -> (N, count S', H, D)."""
        return x.unflatten(0, (-1, self.count)).flatten(1, 2)

    def joined_lse(self, x: Tensor) -> Tensor:
        """(N count, H, S') -> (N, H, count S')."""
        return x.unflatten(0, (-1, self.count)).movedim(1, 2).flatten(2, 3)


def key_groups(blocks: Sequence[Block]) -> tuple[KeyGroup, ...]:
    """Sorted by keys, and full blocks below each other joined; one block each in the given order where sorting would
    change a row's order, or keys overlap without being the same."""
    if len(blocks) == 1 or not _may_be_sorted(blocks):
        return tuple(KeyGroup(block) for block in blocks)
    found: list[KeyGroup] = []
    for block in sorted(blocks, key=lambda block: block.key.start):
        if found and _is_below(block, found[-1]):
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(KeyGroup(block))
    return tuple(found)


def _is_below(block: Block, group: KeyGroup) -> bool:
    end = group.whole.query.stop
    height = group.block.query.stop - group.block.query.start
    return not block.causal and block == replace(group.block, query=slice(end, end + height))


def _may_be_sorted(blocks: Sequence[Block]) -> bool:
    keys = sorted({(block.key.start, block.key.stop) for block in blocks})
    if any(end > begin for (_, end), (begin, _) in pairwise(keys)):
        return False
    edges = sorted({edge for block in blocks for edge in (block.query.start, block.query.stop)})
    place = {edge: number for number, edge in enumerate(edges)}
    last = [-1] * len(edges)  # the first of the latest keys of the rows between two edges
    for block in blocks:
        between = range(place[block.query.start], place[block.query.stop])
        if any(last[rows] > block.key.start for rows in between):
            return False
        for rows in between:
            last[rows] = block.key.start
    return True
