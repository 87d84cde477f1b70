"""Kernel calls of the ranks of a ring, folded: those on blocks of one shape are items of the batch of one call.

A block's partial and gradients depend on no other block; only merges and sums have an order, which stays that of the
steps. So the calls of several steps may be one where the kernel's `foldable` says that this changes no bit.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accuracy.core.dtype import Precision
from accuracy.core.masks import Block
from accuracy.kernel.block.calls import Scores
from accuracy.kernel.block.running_state import RunningState
from accuracy.variant.base import Rank
from accuracy.variant.join import Running
from accuracy.variant.ring import COPIED_ELEMENTS, Blocks
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed


class Call(NamedTuple):
    """A block of consecutive ranks, on the keys of the ranks `shift` further on. shape: the block in tensors of its
    rows and keys alone, which calls of one shape have alike."""

    ranks: range
    shift: int
    block: Block
    shape: Block

    @property
    def sources(self) -> range:
        """Return the ranks whose keys are read."""
        return range(self.ranks.start + self.shift, self.ranks.stop + self.shift)


def steps(rank: Rank, blocks: Blocks, length: int) -> tuple[tuple[Call, ...], ...]:
    """Return the calls of each step of the ring, the ranks' own keys first; a rank may be in none. A plan is kept for
    cases that differ in numbers and roundings alone. rank: any of them; length: tokens a rank."""
    unknown: dict[str, Any] = {"kernel": None, "dtype": torch.float64, "scores": Scores(1.0)}
    direction = Precision(ring_direction=rank.precision.ring_direction)
    return _steps(replace(rank.seated(0), precision=direction, **unknown), blocks, length)


@lru_cache(maxsize=32)
def _steps(layout: Rank, blocks: Blocks, length: int) -> tuple[tuple[Call, ...], ...]:
    size = layout.world.size
    ranks = [layout.seated(number) for number in range(size)]
    onward = -1 if layout.precision.ring_direction == "next" else 1
    return tuple(tuple(_calls_at(ranks, blocks, length, step * onward)) for step in range(size))


def _calls_at(ranks: list[Rank], blocks: Blocks, length: int, distance: int) -> Iterator[Call]:
    """Yield the calls of a step at which rank r has the keys of rank r + distance, modulo the size."""
    work = []
    for number, rank in enumerate(ranks):
        source = (number + distance) % len(ranks)
        work.append((source - number, tuple(blocks(rank, source, length))))
    for some in _alike(range(len(ranks)), work):
        shift, found = work[some.start]
        yield from (Call(some, shift, each, each.shifted(each.query.start, each.key.start)) for each in found)


def _alike(ranks: range, each: Sequence[Any]) -> Iterator[range]:
    """Yield the ranks in parts of consecutive ones of which `each`, by rank, has the same."""
    for _, same in groupby(ranks, key=each.__getitem__):
        several = list(same)
        yield range(several[0], several[-1] + 1)


def of_items(rank: Rank, items: int) -> Rank:
    """Return the rank with a kernel that knows of how many items the calls are which it may fold."""
    known = getattr(rank.kernel, "of_items", None)
    return rank if known is None else replace(rank, kernel=known(items))


@contextmanager
def blamed(ranks: range) -> Iterator[None]:
    """An error of a call for some ranks says whose it was. Raises RankFailed."""
    try:
        yield
    except Exception as error:
        whose = f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"
        raise RankFailed(f"{whose}: {type(error).__name__}: {error}") from error


Reads = Sequence[tuple[str, Tensor]]
"""Tensors of all ranks, (W B, ...), of which a call reads `rows` or `keys`; `lse`: rows of (W B, H, S)."""


def operands(call: Call, reads: Reads, batch: int) -> Iterator[Tensor]:
    """Yield the part of each tensor that a call computes with. batch: items a rank."""
    for what, x in reads:
        mine = x[items(call.sources if what == "keys" else call.ranks, batch)]
        rows = call.block.key if what == "keys" else call.block.query
        yield mine[:, :, rows] if what == "lse" else mine[:, rows]


def computed(
    way: str, rank: Rank, calls: Sequence[Call], reads: Reads, like: Tensors, compute: Callable[..., Sequence[Tensor]]
) -> Iterator[tuple[Call, Tensors]]:
    """Yield the calls in their order, cut into parts for fewer ranks where the kernel asks for it, each with what
    `compute` gives for its block and operands. Those that are one call of the kernel are computed with the first. like:
    q and k of one rank, for their shapes."""
    (cut, lots), batch = _in_lots(way, rank, calls, *like), len(like[0])
    ready: dict[int, Tensors] = {}
    for number, call in enumerate(cut):
        if number not in ready:
            lot = lots[number]
            several = [cut[each] for each in lot]
            ranks = [each for one in several for each in one.ranks]
            with blamed(range(min(ranks), max(ranks) + 1)):
                parts = zip(*(operands(each, reads, batch) for each in several), strict=True)
                results = compute(call.shape, *(same[0] if len(same) == 1 else torch.cat(same) for same in parts))
            sizes = [len(each.ranks) * batch for each in several]
            ready |= zip(lot, zip(*(x.split(sizes) for x in results), strict=True), strict=True)
        yield call, ready.pop(number)


def _in_lots(
    way: str, rank: Rank, calls: Sequence[Call], q: Tensor, k: Tensor
) -> tuple[list[Call], dict[int, list[int]]]:
    """Return the calls, cut into parts for as many ranks as the kernel takes at once, and for the number of each part
    those of the parts that are one call: as many as kernel and memory allow."""
    foldable = getattr(rank.kernel, "foldable", None)
    row = max(q[:, 0].numel(), k[:, 0].numel())
    counts: Counter[Block] = Counter()
    for call in calls:
        counts[call.shape] += len(call.ranks)
    wide = dict.fromkeys(counts, 1)
    if foldable is not None:
        for shape, count in counts.items():
            most = foldable(way, count, q[:, shape.query], k[:, shape.key])
            wide[shape] = max(1, min(most, COPIED_ELEMENTS // (row * max(shape.query.stop, shape.key.stop))))
    cut: list[Call] = []
    lots: dict[int, list[int]] = {}
    filled: dict[Block, list[int]] = {}
    left: Counter[Block] = Counter()
    for call in calls:
        begin, shape = call.ranks.start, call.shape
        while begin < call.ranks.stop:
            if not left[shape]:
                filled[shape], left[shape] = [], wide[shape]
            end = min(call.ranks.stop, begin + left[shape])
            left[shape] -= end - begin
            filled[shape].append(len(cut))
            lots[len(cut)] = filled[shape]
            cut.append(call._replace(ranks=range(begin, end)))
            begin = end
    return cut, lots


def items(ranks: range, batch: int) -> slice:
    """Return where consecutive ranks are in a batch in which each has `batch` items."""
    return slice(ranks.start * batch, ranks.stop * batch)


class RankPartials:
    """The running partials of all ranks, (W B, ...), so that consecutive ranks of equal progress are one slice. whole:
    with no block yet."""

    def __init__(self, whole: Running | RunningState, size: int, batch: int) -> None:
        self.whole, self.batch = whole, batch
        self.progress: list[Any] = [whole.progress] * size

    def parts(self, ranks: range) -> Iterator[tuple[range, Any]]:
        """Yield the whole cut where the progress of consecutive ranks changes: the ranks, and their part. What the
        caller has added to a part is noted when it asks for the next."""
        for some in list(_alike(ranks, self.progress)):
            part: Any = self.whole.part(items(some, self.batch), self.progress[some.start])
            yield some, part
            self.progress[some.start : some.stop] = [part.progress] * len(some)


class RankSums:
    """The sums of a gradient of all ranks, (W B, S, heads, D), as each rank's `Accumulator` has its own."""

    def __init__(self, like: Tensor, dtype: torch.dtype, size: int, batch: int) -> None:
        self.total, self.batch = torch.empty_like(like, dtype=dtype), batch
        self.begun = [False] * size

    def add(self, ranks: range, rows: slice, blocks: Tensor) -> None:
        """Add blocks (n B, rows, heads, D) of n consecutive ranks. A sum begins with a block of all rows as it is."""
        for some in list(_alike(ranks, self.begun)):
            total = self.total[items(some, self.batch)]
            block = blocks[items(range(some.start - ranks.start, some.stop - ranks.start), self.batch)]
            if not self.begun[some.start] and rows == slice(0, total.shape[1]):
                total.copy_(block)
            else:
                self._begin(some)
                total[:, rows].add_(block)
            self.begun[some.start : some.stop] = [True] * len(some)

    def value(self) -> Tensor:
        """Return the sums of all ranks, zero where none has begun."""
        for some in list(_alike(range(len(self.begun)), self.begun)):
            self._begin(some)
        return self.total

    def _begin(self, ranks: range) -> None:
        if not self.begun[ranks.start]:
            self.total[items(ranks, self.batch)].zero_()
            self.begun[ranks.start : ranks.stop] = [True] * len(ranks)
