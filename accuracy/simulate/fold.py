"""Kernel calls, merges and additions of simulated ranks, several in the batch of one, every bit the same.

Each rank runs its own coroutine. When no rank can go on, the fold computes what they wait for: kernel calls of equal
shape, mask and dtype become one call, of as many as the kernel's `foldable` says keep every bit, and each rank gets its
slice. Running partials and sums of all ranks are beside each other in one memory, so that merges into equal rows are
one merge and additions one addition; they wait until a schedule reads the result or the fold computes again.
"""

from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import coroutine
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from accuracy.core.masks import Block
from accuracy.kernel.block import calls
from accuracy.kernel.block.running_state import RunningState
from accuracy.variant.base import Rank
from accuracy.variant.join import Accumulator, Running
from accuracy.world.base import Tensors
from accuracy.world.simulated import RankFailed

COPIED_ELEMENTS = 2**27
"""Of rows or keys that are one kernel call at most: 256 MiB in 16 bits."""


def position_is_irrelevant(x: Tensor) -> bool:
    """Whether torch's functions of an element give the same bits wherever it lies: on the CPU, those at the end of a
    tensor, which fill no vector register, are computed by another exponential (sigmoid, logaddexp)."""
    return x.is_cuda


@dataclass(eq=False)
class Call:
    """A kernel call that a rank waits for."""

    rank: int
    way: str
    tensors: Tensors
    how: dict[str, Any]
    results: Tensors | None = None

    @property
    def kind(self) -> Hashable:
        """Calls of one kind may be one call."""
        return self.way, *((x.shape, x.dtype) for x in self.tensors), *self.how.items()

    def __await__(self) -> Generator[str, None, Tensors]:
        """What the kernel gives."""
        while self.results is None:
            yield f"rank {self.rank} waits for its kernel"
        return self.results


@dataclass(eq=False)
class Fold:
    """What the ranks have asked for and nobody has computed. families: the memory of all ranks that the n-th running
    partial or sum of each has a part of; asked: how many each rank has."""

    kernel: Any
    size: int
    calls: list[Call] = field(default_factory=list)
    joins: list["Join"] = field(default_factory=list)
    families: dict[Hashable, Any] = field(default_factory=dict)
    asked: dict[Hashable, int] = field(default_factory=dict)
    kernels: dict[int, Any] = field(default_factory=dict)
    advanced: bool = False

    def compute(self) -> bool:
        """All of it; whether there was something, or has been since the last time."""
        calls, self.calls = self.calls, []
        self.join()
        found, self.advanced = bool(calls) or self.advanced, False
        alike: dict[Hashable, list[Call]] = {}
        for call in calls:
            alike.setdefault(call.kind, []).append(call)
        for group in alike.values():
            at_once = self._at_once(group)
            for first in range(0, len(group), at_once):
                self._compute(group[first : first + at_once])
        return found

    def join(self) -> None:
        """Merge and add what waits; of each running partial and sum in the order in which it was asked for."""
        joins, self.joins = self.joins, []
        self.advanced = self.advanced or bool(joins)
        while joins:
            first = {id(join.target): join for join in reversed(joins)}
            alike: dict[Hashable, list[Join]] = {}
            for join in first.values():
                alike.setdefault(join.kind, []).append(join)
            for group in alike.values():
                for run in _runs(group):
                    _join(run)
            joins = [join for join in joins if first[id(join.target)] is not join]

    def later(self, target: Any, where: Any, *tensors: Tensor) -> None:
        """Join tensors with the target when it is read, or when all that waits is computed."""
        self.joins.append(Join(target, where, tensors))
        target.waits = True

    @coroutine
    def met(self) -> Generator[str, None, None]:
        """Wait until every rank has come as far as it can without what waits to be joined."""
        waiting = self.joins
        while waiting and self.joins is waiting:
            yield "a rank waits for the others' sums"

    def whole(self, kind: str, rank: int, make: Any) -> Any:
        """The memory of all ranks for the next running partial or sum of this kind that a rank asks for."""
        number = self.asked.get((kind, rank), 0)
        self.asked[kind, rank] = number + 1
        if (kind, number) not in self.families:
            self.families[kind, number] = make()
        return self.families[kind, number]

    def _of_items(self, batch: int) -> Any:
        """The kernel, which knows of how many items each of its calls is if it asks for that."""
        if batch not in self.kernels:
            of_items = getattr(self.kernel, "of_items", None)
            self.kernels[batch] = self.kernel if of_items is None else of_items(batch)
        return self.kernels[batch]

    def _at_once(self, group: Sequence[Call]) -> int:
        way, tensors = group[0].way, group[0].tensors
        q, k = tensors[:2] if way == "forward" else tensors[1:3]
        count = min(len(group), COPIED_ELEMENTS // max(q.numel(), k.numel()))
        return max(1, self._of_items(len(q)).foldable(way, count, q, k)) if count > 1 else 1

    def _compute(self, group: Sequence[Call]) -> None:
        batch = len(group[0].tensors[0])
        with _blamed(group):
            tensors = [stacked(same) for same in zip(*(call.tensors for call in group), strict=True)]
            results = getattr(self._of_items(batch), group[0].way)(*tensors, **group[0].how)
        for call, parts in zip(group, zip(*(x.split(batch) for x in results), strict=True), strict=True):
            call.results = tuple(x.data for x in parts)  # with versions of their own: a block may become a sum


@dataclass(frozen=True)
class Asked:
    """In place of the kernel: its calls wait in the fold."""

    fold: Fold
    rank: int

    def forward(self, *tensors: Tensor, **how: Any) -> Any:
        """See `Kernel.forward`; to be awaited."""
        return self._asked("forward", tensors, how)

    def backward(self, *tensors: Tensor, **how: Any) -> Any:
        """See `Kernel.backward`; to be awaited."""
        return self._asked("backward", tensors, how)

    def _asked(self, way: str, tensors: Tensors, how: dict[str, Any]) -> Call:
        self.fold.calls.append(Call(self.rank, way, tensors, how))
        return self.fold.calls[-1]


@dataclass(frozen=True)
class FoldedRank(Rank):
    """A rank whose kernel calls, merges and sums are computed with those of the others. number: which of all it is."""

    fold: Fold = None  # type: ignore[assignment]
    number: int = 0

    async def bring(self, running: Running | RunningState, block: Block, q: Tensor, k: Tensor, v: Tensor) -> None:
        """See `Rank.bring`."""
        if isinstance(running, RunningState) or not self._folds("attend") or not position_is_irrelevant(q):
            return self.join(running, block, q, k, v)
        asked: Any = Asked(self.fold, self.number)
        waiting: Any = calls.forward(asked, self.scores, block, q, k, v, self.place("partial"))
        running.add(block, *await waiting)

    async def gradients(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Rank.gradients`."""
        if not self._folds("differentiate"):
            return await super().gradients(block, dout, q, k, v, out, lse)
        asked: Any = Asked(self.fold, self.number)
        dtype = self.place("gradient_partial")
        waiting: Any = calls.backward(asked, self.scores, block, dout, q, k, v, out, lse, dtype)
        found: Tensors = await waiting
        return found

    async def meet(self) -> None:
        """See `Rank.meet`."""
        await self.fold.met()

    def running(self, q: Tensor) -> Running | RunningState:
        """See `Rank.running`."""
        if hasattr(self.kernel, "carry") or not position_is_irrelevant(q):
            return super().running(q)
        whole = self.fold.whole("running", self.number, lambda: super(FoldedRank, self).running(self._of_all(q)))
        part = whole.part(_items(self.number, len(q)), whole.progress)
        own = {"out": part.out.data, "lse": part.lse.data}  # with versions of their own
        return FoldedRunning(**vars(part) | own, fold=self.fold, whole=whole, place=self.number)

    def accumulator(self, name: str, like: Tensor) -> Accumulator:
        """See `Rank.accumulator`."""
        plain = super().accumulator(name, like)
        if not position_is_irrelevant(like):
            return plain
        whole = self.fold.whole(name, self.number, lambda: Accumulator(self._of_all(like), plain.dtype))
        memory = whole.part(_items(self.number, len(like)), progress=False).memory.data  # with a version of its own
        return FoldedSum(memory, plain.dtype, None, memory, self.fold, whole)

    def _folds(self, call: str) -> bool:
        """Not a kernel, nor a call of it, that somebody has put in place of the fold's."""
        return self.kernel is self.fold.kernel and getattr(type(self), call) is getattr(Rank, call)

    def _of_all(self, x: Tensor) -> Tensor:
        return x.new_empty(self.fold.size * len(x), *x.shape[1:])


@dataclass
class FoldedRunning(Running):
    """A rank's part of the running partials of all, in `whole`."""

    fold: Fold = None  # type: ignore[assignment]
    whole: Running = None  # type: ignore[assignment]
    place: int = 0
    waits: bool = False

    def add(self, block: Block, block_out: Tensor, block_lse: Tensor) -> None:
        """See `Running.add`."""
        self.fold.later(self, block, block_out, block_lse)

    def result(self, out_dtype: torch.dtype, lse_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """See `Running.result`."""
        if self.waits:
            self.fold.join()
        return super().result(out_dtype, lse_dtype)

    def kind(self, block: Block) -> Hashable:
        """Merges of one kind may be one merge."""
        return id(self.whole), block.query.start, block.query.stop, bytes(self.seen)

    def reached(self, part: Running) -> None:
        """The merge is done: the rank's tensors have been written to."""
        self.seen[:] = part.seen
        increment_version(self.out)


@dataclass
class FoldedSum(Accumulator):
    """A rank's sum, in the memory of all ranks' until it is replaced by another tensor."""

    fold: Fold = None  # type: ignore[assignment]
    whole: Accumulator = None  # type: ignore[assignment]
    waits: bool = False

    def add(self, rows: slice, block: Tensor) -> None:
        """See `Accumulator.add`."""
        self.fold.later(self, rows, block)

    def value(self) -> Tensor:
        """See `Accumulator.value`."""
        if self.waits:
            self.fold.join()
        return super().value()

    def take(self, received: Tensor) -> None:
        """See `Accumulator.take`."""
        if self.waits:
            self.fold.join()
        super().take(received)

    def kind(self, rows: slice) -> Hashable:
        """Additions of one kind may be one addition."""
        inside = self.place is not None
        return id(self.whole) if inside else id(self), rows.start, rows.stop, self.progress

    @property
    def place(self) -> int | None:
        """Where the sum is among those of all ranks; None: elsewhere."""
        here: Any = self.memory if self.total is None else self.total
        whole: Any = self.whole.memory
        there = here.dtype == whole.dtype and here.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
        return here.storage_offset() // here.numel() if there else None

    def reached(self, part: Accumulator) -> None:
        """The addition is done: the rank's tensor has been written to, which the world looks for while it travels."""
        held: Any = self.memory if self.total is None else self.total
        self.total = held
        increment_version(held)


@dataclass(eq=False)
class Join:
    """Tensors to be merged into a running partial, or added to a sum; where: the block, or the rows."""

    target: Any
    where: Any
    tensors: Tensors

    @property
    def kind(self) -> Hashable:
        """Joins of one kind may be one."""
        return self.target.kind(self.where), *((x.shape, x.dtype) for x in self.tensors)


def _runs(group: list[Join]) -> Iterator[list[Join]]:
    """Those whose memory is beside each other."""
    placed = {join.target.place: join for join in group}
    if None in placed:
        yield group
        return
    run: list[Join] = []
    for place in sorted(placed):
        if run and place - 1 not in placed:
            yield run
            run = []
        run.append(placed[place])
    yield run


def _join(run: Sequence[Join]) -> None:
    target, where, first, batch = run[0].target, run[0].where, run[0].target.place, len(run[0].tensors[0])
    for join in run:
        join.target.waits = False
    if first is None:
        Accumulator.add(target, where, *run[0].tensors)
        return
    part = target.whole.part(slice(first * batch, (first + len(run)) * batch), target.progress)
    part.add(where, *(stacked(same) for same in zip(*(join.tensors for join in run), strict=True)))
    for join in run:
        join.target.reached(part)


def _items(rank: int, batch: int) -> slice:
    return slice(rank * batch, (rank + 1) * batch)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """(B, ...) each -> (N B, ...): where they lie if that is at equal distances of one memory, else copied."""
    first, *others = tensors
    if not others:
        return first
    begin, gap = first.storage_offset(), others[0].storage_offset() - first.storage_offset()
    memory, stride = first.untyped_storage().data_ptr(), first.stride()
    if gap > 0 and all(
        x.storage_offset() == begin + number * gap and x.stride() == stride
        and x.untyped_storage().data_ptr() == memory for number, x in enumerate(others, 1)
    ):  # fmt: skip
        return first.as_strided((len(tensors), *first.shape), (gap, *stride)).flatten(0, 1)
    return torch.cat(list(tensors))


@contextmanager
def _blamed(group: Sequence[Call]) -> Iterator[None]:
    """An error of a call for some ranks says whose it was. Raises RankFailed."""
    try:
        yield
    except Exception as error:
        ranks = sorted({call.rank for call in group})
        several = f"ranks {ranks[0]} to {ranks[-1]}" if ranks[-1] - ranks[0] == len(ranks) - 1 else f"ranks {ranks}"
        whose = f"rank {ranks[0]}" if len(ranks) == 1 else several
        raise RankFailed(f"{whose}: {type(error).__name__}: {error}") from error
