"""Blocks of equal shape in a grid, one below the other on the same keys, and side by side: one kernel call with the
blocks in its batch. The order of blocks is the same for every row and for every key: no merge and no sum comes in
another place."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from accuracy.core.masks import Block


@dataclass(frozen=True)
class KeyGroup:
    """`count` blocks below each other, of each of `across` runs of keys side by side; block: the first. A tensor of N
    items becomes one of N across count items, a block's rows or keys each."""

    block: Block
    count: int = 1
    across: int = 1

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Alike of equal groups: slices have no hash in older Pythons."""
        block = self.block
        edges = block.query.start, block.query.stop, block.key.start, block.key.stop
        return (*edges, block.causal, block.window, self.count, self.across)

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def shape(self) -> Hashable:
        """Alike of groups whose blocks differ in their places and number alone."""
        return (self.one.query.stop, self.one.key.stop, *self.key[4:6])

    @cached_property
    def blocks(self) -> int:
        """How many there are."""
        return self.count * self.across

    @cached_property
    def whole(self) -> Block:
        """All rows and keys."""
        query, key = self.block.query, self.block.key
        return replace(
            self.block,
            query=slice(query.start, query.start + self.count * (query.stop - query.start)),
            key=slice(key.start, key.start + self.across * (key.stop - key.start)),
        )

    @cached_property
    def one(self) -> Block:
        """A block in the tensors that `rows` and `keys` give."""
        query, key = self.block.query, self.block.key
        return replace(self.block, query=slice(0, query.stop - query.start), key=slice(0, key.stop - key.start))

    def pieces(self, count: int) -> list["KeyGroup"]:
        """The same blocks in their order, at most `count` in a group: the whole grid, or each run of keys by itself."""
        if count >= self.blocks:
            return [self]
        height, width = (each.stop - each.start for each in (self.block.query, self.block.key))
        return [
            KeyGroup(self.block.shifted(-first * height, -run * width), min(count, self.count - first))
            for run in range(self.across)
            for first in range(0, self.count, count)
        ]

    def rows(self, x: Tensor) -> Tensor:
        """(N, S, H, D) -> (N across count, S', H, D)."""
        rows = x[:, self.whole.query]
        if self.blocks == 1:
            return rows
        items, _, heads, dim = rows.shape
        return _repeated(rows.view(items, 1, self.count, -1, heads, dim), self.across, self.count)

    def keys(self, x: Tensor) -> Tensor:
        """(N, S, Hk, D) -> (N across count, S'', Hk, D)."""
        keys = x[:, self.whole.key]
        if self.blocks == 1:
            return keys
        items, _, heads, dim = keys.shape
        return _repeated(keys.view(items, self.across, 1, -1, heads, dim), self.across, self.count)

    def lse(self, x: Tensor) -> Tensor:
        """(N, H, S) -> (N across count, H, S')."""
        rows = x[:, :, self.whole.query]
        if self.blocks == 1:
            return rows
        rows = rows.unflatten(2, (self.count, -1)).movedim(2, 1)
        return rows.unsqueeze(1).expand(-1, self.across, *rows.shape[1:]).flatten(0, 2)

    def joined_rows(self, x: Tensor) -> Tensor:
        """(N across count, S', H, D) -> (N, across, count S', H, D)."""
        return x.reshape(-1, self.across, self.count * x.shape[1], *x.shape[2:])

    def joined_lse(self, x: Tensor) -> Tensor:
        """(N across count, H, S') -> (N, across, H, count S')."""
        return x.unflatten(0, (-1, self.across, self.count)).movedim(2, 3).flatten(3, 4)

    def joined_keys(self, x: Tensor) -> Tensor:
        """(N across, count, S'', Hk, D) -> (N, count, across S'', Hk, D)."""
        _, count, width, heads, _ = x.shape
        words = in_words(x)
        blocks = words.view(-1, self.across, *words.shape[1:]).transpose(1, 2)
        return blocks.reshape(-1, count, self.across * width, heads, words.shape[-1]).view(x.dtype)


WORD = 16
"""Bytes that a GPU copies at once where a tensor's elements are as large."""


def _repeated(x: Tensor, across: int, count: int) -> Tensor:
    """(N, across or 1, count or 1, S', heads, D) -> (N across count, S', heads, D)."""
    words = in_words(x)
    return words.expand(-1, across, count, -1, -1, -1).reshape(-1, *words.shape[3:]).view(x.dtype)


def in_words(x: Tensor) -> Tensor:
    """Its memory in words, where rows of D are made of whole ones: as many bytes are copied by fewer threads."""
    size = x.element_size()
    places = (x.storage_offset(), x.shape[-1], *x.stride()[:-1])
    whole = x.stride(-1) == 1 and all(place * size % WORD == 0 for place in places)
    return x.view(torch.complex128) if whole else x


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
    return tuple(_side_by_side(found))


def _side_by_side(groups: Sequence[KeyGroup]) -> list[KeyGroup]:
    """Full groups of the same rows, each of which begins where the keys of the one before it end, joined where either
    may come when the other does: what lies between has neither rows nor keys of it."""
    found: list[KeyGroup] = []
    for group in groups:
        place = next((place for place in reversed(range(len(found))) if _is_beside(group, found[place])), None)
        between = [] if place is None else found[place + 1 :]
        if place is not None and all(_are_apart(group, other) for other in between):
            found[place] = replace(found[place], across=found[place].across + 1)
        elif place is not None and all(_are_apart(found[place], other) for other in between):
            before = found.pop(place)
            found.append(replace(before, across=before.across + 1))
        else:
            found.append(group)
    return found


def _is_beside(group: KeyGroup, before: KeyGroup) -> bool:
    key, end = group.block.key, before.whole.key.stop
    width = before.block.key.stop - before.block.key.start
    same = replace(before, block=replace(before.block, key=slice(end, end + width)), across=1)
    return not group.block.causal and group.block.window is None and key.start == end and same == group


def _are_apart(one: KeyGroup, other: KeyGroup) -> bool:
    mine, theirs = one.whole, other.whole
    pairs = ((mine.query, theirs.query), (mine.key, theirs.key))
    return all(a.stop <= b.start or b.stop <= a.start for a, b in pairs)


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
