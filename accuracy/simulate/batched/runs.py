"""Which ranks of a ring do the same work at each step, so that one kernel call can serve them?

In: the ring's blocks and the number of ranks. Out: for every step, runs of consecutive ranks that compute the same
blocks of the keys of consecutive sources.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch

from accuracy.core.precision import Precision
from accuracy.kernel.block.calls import Scores
from accuracy.simulate.batched.key_group import KeyGroup, key_groups
from accuracy.variant.base import Rank
from accuracy.variant.ring import Blocks


@dataclass(frozen=True)
class Run:
    """Consecutive ranks; rank r computes the blocks of `groups` of the keys of rank r + shift."""

    ranks: range
    shift: int
    groups: tuple[KeyGroup, ...]


@dataclass(frozen=True)
class Place:
    """Which rank of how many: all that a plan knows of the world."""

    rank: int
    size: int


def at_every_place(rank: Rank, size: int) -> list[Rank]:
    """The rank as each of so many, for plans: their worlds carry nothing."""
    places: list[Any] = [Place(number, size) for number in range(size)]
    return [replace(rank, world=place) for place in places]


def steps(rank: Rank, blocks: Blocks, length: int) -> tuple[tuple[Run, ...], ...]:
    """The runs of each step of the ring, the ranks' own keys first. Ranks without a block at a step are in no run.

    rank: any; length: tokens a rank. Kept for cases that differ in what a plan does not know: numbers and rounding.
    """
    unknown: dict[str, Any] = {"kernel": None, "dtype": torch.float64, "scores": Scores(1.0)}
    direction = Precision(ring_direction=rank.precision.ring_direction)
    place: Any = Place(0, rank.world.size)
    return _steps(replace(rank, world=place, precision=direction, **unknown), blocks, length)


@lru_cache(maxsize=32)
def _steps(layout: Rank, blocks: Blocks, length: int) -> tuple[tuple[Run, ...], ...]:
    size = layout.world.size
    ranks = at_every_place(layout, size)
    onward = -1 if layout.precision.ring_direction == "next" else 1
    return tuple(tuple(_runs(ranks, blocks, length, step * onward)) for step in range(size))


def _runs(ranks: list[Rank], blocks: Blocks, length: int, distance: int) -> Iterator[Run]:
    """The runs of a step at which rank r has the keys of rank r + distance, modulo the size."""
    size = len(ranks)
    work = []
    for number, rank in enumerate(ranks):
        source = (number + distance) % size
        work.append((number, (source - number, tuple(blocks(rank, source, length)))))
    for (shift, found), run in groupby(work, key=lambda each: each[1]):
        numbers = [number for number, _ in run]
        if found:
            yield Run(range(numbers[0], numbers[-1] + 1), shift, key_groups(found))
