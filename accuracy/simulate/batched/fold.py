"""Which ranks of a ring do the same work at a step, and their kernel calls, folded: several calls, of consecutive
ranks, in the batch of one call."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from accuracy.core.dtype import Precision
from accuracy.core.masks import Block
from accuracy.kernel.block.calls import Scores
from accuracy.kernel.block.running_state import RunningState
from accuracy.variant.base import Rank
from accuracy.variant.join import Accumulator, Running
from accuracy.variant.ring import Blocks
from accuracy.world.simulated import RankFailed


class Run(NamedTuple):
    """Consecutive ranks; rank r computes `blocks` of the keys of rank r + shift."""

    ranks: range
    shift: int
    blocks: tuple[Block, ...]


class Place(NamedTuple):
    """Which rank of how many: all that a plan knows of the world."""

    rank: int
    size: int


def at_every_place(rank: Rank, size: int) -> list[Rank]:
    """The rank as each of so many, for plans: their worlds carry nothing."""
    places: list[Any] = [Place(number, size) for number in range(size)]
    return [replace(rank, world=place) for place in places]


def steps(rank: Rank, blocks: Blocks, length: int) -> tuple[tuple[Run, ...], ...]:
    """The runs of each step of the ring, the ranks' own keys first. Ranks without a block at a step are in no run.
    rank: any; length: tokens a rank. Kept for cases that differ in what a plan does not know: numbers and rounding."""
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
            yield Run(range(numbers[0], numbers[-1] + 1), shift, found)


@dataclass(frozen=True)
class Call:
    """A block of consecutive ranks, on the keys of the ranks `shift` further on. wide: of how many ranks at most the
    kernel takes the blocks at once."""

    block: Block
    ranks: range
    shift: int
    wide: int

    @cached_property
    def one(self) -> Block:
        """The block in tensors of its rows and keys alone; alike of calls whose blocks differ in their places."""
        return self.block.shifted(self.block.query.start, self.block.key.start)

    def sources(self, ranks: range) -> range:
        """Whose keys some of the ranks read."""
        return range(ranks.start + self.shift, ranks.stop + self.shift)

    def parts(self) -> Iterator[range]:
        """The ranks of each call of the kernel."""
        return (self.ranks[begin : begin + self.wide] for begin in range(0, len(self.ranks), self.wide))


def calls(rank: Rank, way: str, runs: Sequence[Run], q: Tensor, k: Tensor) -> Iterator[Call]:
    """The kernel calls of one step, or of several, each rank's blocks in their order. q, k: of one rank, for their
    shapes."""
    foldable = getattr(rank.kernel, "foldable", None)
    found = [Call(block, run.ranks, run.shift, 1) for run in runs for block in run.blocks]
    blocks: Counter[Block] = Counter()
    for call in found:
        blocks[call.one] += len(call.ranks)
    for call in found:
        queries, keys = q[:, call.block.query], k[:, call.block.key]
        if foldable and (way == "backward" or position_is_irrelevant(queries)):  # a backward's are only added
            yield replace(call, wide=foldable(way, blocks[call.one], queries, keys))
        else:
            yield call


def of_items(rank: Rank, items: int) -> Rank:
    """The rank with a kernel that knows of how many items the calls are which it may fold."""
    known = getattr(rank.kernel, "of_items", None)
    return rank if known is None else replace(rank, kernel=known(items))


def position_is_irrelevant(x: Tensor) -> bool:
    """Whether torch's functions of an element give the same bits wherever it lies: on the CPU, those at the end of a
    tensor, which fill no vector register, are computed by another exponential (sigmoid, logaddexp)."""
    return x.is_cuda


def on_gpu(x: Tensor) -> bool:
    """Where one pass over memory is a kernel."""
    return x.is_cuda


@contextmanager
def blamed(ranks: range) -> Iterator[None]:
    """An error of a call for some ranks says whose it was. Raises RankFailed."""
    try:
        yield
    except Exception as error:
        whose = f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"
        raise RankFailed(f"{whose}: {type(error).__name__}: {error}") from error


T = TypeVar("T", Running | RunningState, Accumulator)


class RankStates(Generic[T]):
    """(W B, ...), so that consecutive ranks of equal progress are one slice. whole: of all ranks, with no block yet;
    each: how far each rank has come."""

    def __init__(self, whole: T, size: int, batch: int) -> None:
        self.whole: T = whole
        self.batch = batch
        self.each: list[Any] = [whole.progress] * size

    def parts(self, ranks: range) -> Iterator[tuple[range, T]]:
        """The whole cut where the progress of consecutive ranks changes: the ranks, and their part. What the caller has
        added to a part is noted when it asks for the next."""
        for progress, alike in groupby(ranks, key=self.each.__getitem__):
            several = list(alike)
            some = range(several[0], several[-1] + 1)
            part = self.whole.part(items(some, self.batch), progress)
            yield some, part
            self.each[some.start : some.stop] = [part.progress] * len(some)


def items(ranks: range, batch: int) -> slice:
    """Where consecutive ranks are in a batch in which each has `batch` items."""
    return slice(ranks.start * batch, ranks.stop * batch)


def memory(total: RankStates[Accumulator]) -> Tensor:
    """Of the sums of all ranks, whether they have begun or not."""
    total.whole.part(slice(0, 0), progress=False)
    assert total.whole.memory is not None
    return total.whole.memory


def value(total: RankStates[Accumulator], ranks: range | None = None) -> Tensor:
    """The sums of all ranks, zero where those of `ranks` (all) have not begun."""
    for _, part in total.parts(range(len(total.each)) if ranks is None else ranks):
        part.value()
    return memory(total)
