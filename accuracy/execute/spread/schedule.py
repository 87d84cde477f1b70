"""Who measures which case next: cases that share a reference stay together, and nobody is idle while help would pay.

In: the cases to measure, and what each took. Out: the next case of a worker. Cases that share targets are a group.
A free worker opens the group that nobody has opened and that has most to compute; when all are open, it joins the one
with most left. Joining means computing the group's reference once more (or reading it from the cache), so it must pay:
the others would need longer for what is left than the newcomer for its preparations.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from accuracy.core.case import Case
from accuracy.measure.pipeline import shared


@dataclass(frozen=True)
class Spent:
    """Seconds that a case took: until its ranks ran (reference and single device, unless they were there), and from
    then on."""

    preparing: float
    running: float


@dataclass
class Group:
    """Cases that share targets: those that nobody has taken, who is at them, and what those taken took."""

    left: deque[Case]
    members: set[int] = field(default_factory=set)
    spent: Spent = Spent(1.0, 1.0)  # preparing: a member's first case; running: the last case

    @property
    def remaining(self) -> float:
        """Seconds until its members are through: what is left has no larger worlds than the last case had."""
        return len(self.left) * self.spent.running / max(1, len(self.members))

    @property
    def worth_joining(self) -> bool:
        """Whether a newcomer would be ready before the members are through."""
        return self.remaining > self.spent.preparing


class Schedule:
    """The cases that nobody has taken yet, for workers that are numbers."""

    def __init__(self, cases: Iterable[Case]) -> None:
        by_share: dict[object, list[Case]] = {}
        for case in cases:
            by_share.setdefault(shared(case), []).append(case)
        # large worlds first: what ends last is then short
        groups = [Group(deque(sorted(each, key=lambda case: -case.world_size))) for each in by_share.values()]
        self._groups = sorted(groups, key=_scores, reverse=True)
        self._at: dict[int, Group] = {}
        self._new: set[int] = set()  # workers at their first case of a group
        self._first = Spent(1.0, 1.0)  # of the latest such case: what the next group is taken to need

    def __len__(self) -> int:
        return sum(len(group.left) for group in self._groups)

    def take(self, worker: int) -> Case | None:
        """The worker's next case; None: nothing that would pay, for now."""
        group = self._at.get(worker)
        if group is None or not group.left:
            self.leave(worker)
            group = self._open() or self._most_left()
            if group is None:
                return None
            if not group.members:
                group.spent = self._first
            group.members.add(worker)
            self._new.add(worker)
            self._at[worker] = group
        return group.left.popleft()

    def note(self, worker: int, spent: Spent) -> None:
        """What the worker's case took."""
        group = self._at[worker]
        if worker in self._new:
            self._new.remove(worker)
            self._first = group.spent = spent
        group.spent = replace(group.spent, running=spent.running)

    def put_back(self, worker: int, case: Case) -> None:
        """The worker could not be given the case."""
        self._at[worker].left.appendleft(case)

    def leave(self, worker: int) -> None:
        """The worker is gone, or at another group."""
        self._new.discard(worker)
        if worker in self._at:
            self._at.pop(worker).members.remove(worker)

    def _open(self) -> Group | None:
        return next((group for group in self._groups if group.left and not group.members), None)

    def _most_left(self) -> Group | None:
        joinable = [group for group in self._groups if group.left and group.worth_joining]
        return max(joinable, key=lambda group: group.remaining, default=None)


def _scores(group: Group) -> int:
    """Products of a query and a key over all its cases, a measure of its length before anything is known."""
    problems = [case.problem for case in group.left]
    return sum(each.batch * each.heads * each.queries * each.seqlen for each in problems)
