"""What every rank keeps, in one memory: a running partial or a sum for all ranks, and how far each has come with it.

The ranks lie beside each other in the batch, (W B, ...), so that ranks in a row that have come equally far go on
together.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar


class Kept(Protocol):
    """`Running`, `Carried` or `Accumulator`, of several ranks. progress: what the next block's fate depends on."""

    @property
    def progress(self) -> Any:
        """How far it has come."""
        ...

    def part(self, items: slice, progress: Any) -> Any:
        """Of some items of the batch, in the memory of the whole, as far as `progress` says."""
        ...


T = TypeVar("T", bound=Kept)


class OfRanks(Generic[T]):
    """whole: of all ranks, with no block yet; each: how far each rank has come."""

    def __init__(self, whole: T, size: int, batch: int) -> None:
        self.whole = whole
        self.batch = batch
        self.each = [whole.progress] * size

    def parts(self, ranks: range) -> Iterator[tuple[range, T]]:
        """The whole cut where ranks in a row have come equally far: the ranks, and theirs. What the caller has done to
        a part is noted when it asks for the next."""
        for progress, alike in groupby(ranks, key=self.each.__getitem__):
            several = list(alike)
            some = range(several[0], several[-1] + 1)
            part: T = self.whole.part(items(some, self.batch), progress)
            yield some, part
            self.each[some.start : some.stop] = [part.progress] * len(some)


def items(ranks: range, batch: int) -> slice:
    """Where ranks in a row lie in a batch in which each has `batch` items."""
    return slice(ranks.start * batch, ranks.stop * batch)
