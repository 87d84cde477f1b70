"""What of a fused reference is finished at a place on its way, and what is not: the pieces that a checkpoint keeps.

Squares come key by key, and for each by rows: a row's and a key's sums have the order that they would have row by row,
and of what is finished only dq of rows that see further keys is still being added to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.reference.checkpoint import START, Checkpoint, Pieces, Place
from accuracy.reference.planes import Intervals, Planes

OF_ROWS, OF_KEYS = ("out", "lse", "delta", "bits"), ("dk", "dv")

Heads = tuple[int, slice, slice]
"""An item, query heads of it, and the key/value heads that they share."""


@dataclass
class Progress:
    """planes: all results; groups: of heads, in order; checkpoint: None: nothing is kept; place: how far it is."""

    planes: Planes
    groups: Sequence[Heads]
    intervals: Intervals
    checkpoint: Checkpoint | None = None
    place: Place = START

    def resume(self) -> None:
        """Go on from what the checkpoint has."""
        if self.checkpoint is None:
            return
        try:
            for pieces in self.checkpoint.read():
                for name, piece in pieces.items():
                    self._view(name).copy_(piece)
        except Exception as error:  # any damage means the same
            self.checkpoint.refuse(error)
            self.planes.clear()
        self.place = self.checkpoint.written

    def reached(self, place: Place) -> None:
        """All before the place is computed; kept on disk where it is time."""
        self.place = place
        if self.checkpoint is None:
            return
        if self.planes.out.is_cuda:
            torch.cuda.synchronize()  # else a place is reached before its numbers are
        if self.checkpoint.due():
            self.checkpoint.write(place, self._finished(self.checkpoint.written, place), self._unfinished(place))

    def _finished(self, begin: Place, end: Place) -> Pieces:
        """What became final between two places."""
        found: Pieces = {}
        for group in range(begin.group, min(end.group + 1, len(self.groups))):
            first = begin if group == begin.group else START
            rows = slice(first.rows, end.rows if group == end.group else len(self.intervals.first))
            keys = slice(first.keys, end.keys if group == end.group else self.intervals.keys)
            found |= self._named(group, OF_ROWS, rows) | self._named(group, OF_KEYS, keys)
            found |= self._named(group, ("dq",), slice(self._settled(keys.start), self._settled(keys.stop)))
        return found

    def _unfinished(self, place: Place) -> Pieces:
        """dq of rows that have seen some of their keys."""
        begun = int(torch.searchsorted(self.intervals.first, place.keys))
        rows = slice(self._settled(place.keys), begun)
        return {} if place.group == len(self.groups) else self._named(place.group, ("dq",), rows)

    def _settled(self, keys: int) -> int:
        """How many rows see no key from `keys` on."""
        return int(torch.searchsorted(self.intervals.last, keys, right=True))

    def _named(self, group: int, tensors: Sequence[str], where: slice) -> Pieces:
        if where.start >= where.stop:
            return {}
        names = (f"{tensor} {group} {where.start} {where.stop}" for tensor in tensors)
        return {name: self._view(name) for name in names}

    def _view(self, name: str) -> Tensor:
        tensor, *numbers = name.split()
        group, begin, end = map(int, numbers)
        view: Tensor = getattr(self.planes.of(*self.groups[group]), tensor)[:, begin:end]
        return view

    def left(self) -> Iterator[tuple[int, Heads, Place]]:
        """The groups that are not done, with the place of each to begin at."""
        for group in range(self.place.group, len(self.groups)):
            yield group, self.groups[group], self.place if group == self.place.group else Place(group)
