"""What every rank keeps between steps, in one memory: a running partial or a sum, and how far each rank is with it.

The ranks are beside each other in the batch, (W B, ...), so that consecutive ranks of equal progress are one slice.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar


class Summable(Protocol):
    """`Running`, `RunningState` or `Accumulator`, of several ranks. progress: what decides how a block is added."""

    @property
    def progress(self) -> Any:
        """How far it has come."""
        ...

    def part(self, items: slice, progress: Any) -> Any:
        """Of some items of the batch, in the memory of the whole, as far as `progress` says."""
        ...


T = TypeVar("T", bound=Summable)


class RankStates(Generic[T]):
    """whole: of all ranks, with no block yet; each: how far each rank has come."""

    def __init__(self, whole: T, size: int, batch: int) -> None:
        self.whole = whole
        self.batch = batch
        self.each = [whole.progress] * size

    def parts(self, ranks: range) -> Iterator[tuple[range, T]]:
        """The whole cut where the progress of consecutive ranks changes: the ranks, and their part. What the caller has
        added to a part is noted when it asks for the next."""
        for progress, alike in groupby(ranks, key=self.each.__getitem__):
            several = list(alike)
            some = range(several[0], several[-1] + 1)
            part: T = self.whole.part(items(some, self.batch), progress)
            yield some, part
            self.each[some.start : some.stop] = [part.progress] * len(some)


def items(ranks: range, batch: int) -> slice:
    """Where consecutive ranks are in a batch in which each has `batch` items."""
    return slice(ranks.start * batch, ranks.stop * batch)
