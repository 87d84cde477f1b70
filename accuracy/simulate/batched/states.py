"""What every rank keeps between steps, side by side in one memory."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Generic, TypeVar

from torch import Tensor

from accuracy.kernel.block.running_state import RunningState
from accuracy.variant.join import Accumulator, Running

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
