"""Which case does a free worker measure next? Cases that share a reference stay together, and no worker idles long.

Cases that share inputs and reference are a group. A worker keeps its group until no case of the group is left, then it
opens the largest group that no worker has. When all groups are open, the worker joins the largest one whose own workers
need longer for the cases left than the worker needs for the reference: an earlier end of the run is worth a second one.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean

from accuracy.core.case import Case
from accuracy.measurement.observe import shared

LEAST_PAIRS = 2**20
"""A smaller problem takes as long as one of so many pairs: launches and Python, not attention."""
OF_RUN = 2**16
"""Of those, a run of the schedule by itself; of a traced one, each kernel call's comparison."""


@dataclass(eq=False)
class Group:
    """Cases that share a reference and that no worker has taken yet. workers: how many are at the group; first: seconds
    of a worker's first case, which includes the reference; others: seconds of each other case."""

    left: deque[Case]
    workers: int = 0
    first: float = 0.0
    others: list[float] = field(default_factory=list)

    @property
    def reference(self) -> float:
        """How many cases could be measured in the time of the reference; 0 while unknown."""
        return self.first / fmean(self.others) - 1 if self.others else 0.0

    @property
    def size(self) -> int:
        """Products of a query and a key in all cases left, of all layers of a stack and of all repeats."""
        return sum(map(_pairs, self.left))


def _pairs(case: Case) -> int:
    pairs, calls = case.problem.pairs, case.world_size**2 if case.reruns.trace else 0
    layers = case.stack.layers if case.stack else 1
    return layers * max(pairs, LEAST_PAIRS) + case.reruns.repeat * max(pairs, OF_RUN) + calls * OF_RUN


class Schedule:
    """The cases that no worker has taken yet. Workers are numbers."""

    def __init__(self, cases: Iterable[Case]) -> None:
        groups: dict[object, list[Case]] = {}
        for case in cases:
            groups.setdefault(shared(case), []).append(case)
        # large worlds first: the cases that end last are then short
        self._groups = [Group(deque(sorted(each, key=lambda case: -case.world_size))) for each in groups.values()]
        self._groups.sort(key=lambda group: -group.size)
        self._at: dict[int, Group] = {}
        self._new: set[int] = set()  # workers at their first case of a group
        self._latest = Group(deque())  # the group of the case noted last

    @property
    def empty(self) -> bool:
        """Whether every case was taken."""
        return not any(group.left for group in self._groups)

    def take(self, worker: int) -> Case | None:
        """The worker's next case; None: no case is left that would be worth a reference of the worker's own."""
        group = self._at.get(worker)
        if group is None or not group.left:
            self.leave(worker)
            if (group := self._next_group()) is None:
                return None
            group.workers += 1
            self._at[worker] = group
            self._new.add(worker)
        return group.left.popleft()

    def note(self, worker: int, seconds: float) -> None:
        """How long the worker's case took."""
        group = self._at[worker]
        if worker in self._new:
            self._new.remove(worker)
            group.first = seconds
        else:
            group.others.append(seconds)
            self._latest = group

    def put_back(self, worker: int, case: Case) -> None:
        """The worker ended before it could begin the case."""
        self._at[worker].left.appendleft(case)

    def leave(self, worker: int) -> None:
        """The worker has ended, or is about to change its group."""
        self._new.discard(worker)
        if worker in self._at:
            self._at.pop(worker).workers -= 1

    def _next_group(self) -> Group | None:
        groups = [group for group in self._groups if group.left]
        unopened = next((group for group in groups if not group.workers), None)
        known = [(group, group if group.others else self._latest) for group in groups]
        joinable = (group for group, like in known if len(group.left) > group.workers * like.reference)
        return unopened or max(joinable, key=lambda group: group.size / group.workers, default=None)
