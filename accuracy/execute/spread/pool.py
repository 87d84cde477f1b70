"""Workers and the schedule brought together: each has one case at a time, and one that ends costs that case only.

In: the cases, and how each worker is to measure. Out: how every case ended, its rows on disk.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import wait

from accuracy.core.case import Case
from accuracy.execute.ranks import local
from accuracy.execute.ranks.base import READY, RankEnded
from accuracy.execute.spread.schedule import Schedule
from accuracy.execute.spread.worker import Start, serve
from accuracy.measure.provenance import code_of
from accuracy.measure.rows import about_case
from accuracy.results import table


class Place:
    """A device and the worker on it: the next one is started when the last is gone."""

    def __init__(self, number: int, start: Start) -> None:
        self.number, self.start = number, start
        self.title = f"worker {number}" if start.gpu is None else f"the worker of GPU {start.gpu}"
        self.case: Case | None = None  # in its hands
        self.open()

    def open(self) -> None:
        """Start a worker; it is there when it says so."""
        self.ready = False
        self.worker: local.LocalWorker | None = local.child(serve, self.start, self.number, self.title)

    def kill(self) -> None:
        """End the worker, whatever it is doing; does not wait."""
        if self.worker is not None:
            self.worker.kill()

    def close(self) -> None:
        """See to it that there is none."""
        self.kill()
        if self.worker is not None:
            self.worker.join()
            self.worker = None


def measure(
    cases: Sequence[Case], starts: Sequence[Start], begin: Callable[[Case], None]
) -> Generator[str, None, None]:
    """The status of every case as it ends, in whatever order. begin: told which case a worker gets.

    One worker for each start. To be closed, so that no worker stays.
    """
    schedule = Schedule(cases)
    places: list[Place] = []
    try:
        for number, start in enumerate(starts):
            places.append(Place(number, start))
        while len(schedule) or any(place.case for place in places):
            for place in places:
                _hand_out(place, schedule, begin)
            signs = {sign: place for place in places if place.worker for sign in place.worker.signs}
            if not signs:
                break
            for place in {signs[sign] for sign in wait(list(signs))}:
                yield from _hear(place, schedule)
        while (case := schedule.take(0)) is not None:
            yield _without_worker(case, starts[0], "no worker could be started: the terminal says why")
    finally:
        for place in places:
            place.kill()
        for place in places:
            place.close()


def _hand_out(place: Place, schedule: Schedule, begin: Callable[[Case], None]) -> None:
    if place.worker is None or not place.ready or place.case is not None:
        return
    case = schedule.take(place.number)
    if case is None:
        return
    try:
        place.worker.send(case)
    except RankEnded:  # while it had no case: its sign is ready, too
        schedule.put_back(place.number, case)
    else:
        place.case = case
        begin(case)


def _hear(place: Place, schedule: Schedule) -> Generator[str, None, None]:
    """What a worker that has given a sign has to say, and what follows from it."""
    assert place.worker is not None
    case = place.case
    try:
        told = place.worker.receive()
    except RankEnded as ended:
        _replace(place, schedule, str(ended))
        if case is not None:
            yield _without_worker(case, place.start, str(ended))
        return
    if told == READY:
        place.ready = True
        return
    place.case = None
    schedule.note(place.number, told.spent)
    yield told.status
    if told.broken:
        _replace(place, schedule, "")


def _replace(place: Place, schedule: Schedule, how: str) -> None:
    """A new worker for one that is gone; not for one that did not even come to its first case, nor would the next."""
    place.case = None
    schedule.leave(place.number)
    place.close()
    if place.ready:
        place.open()
    else:
        print(f"accuracy: {how} before its first case; going on without it", file=sys.stderr)


def _without_worker(case: Case, start: Start, reason: str) -> str:
    """Status of a case whose worker is gone: measured where its rows came to the disk, else failed with the reason."""
    found = table.finished_case(start.folder, case.id)
    if found is not None and found.code == code_of(case):
        return found.status
    table.write_case(start.folder, case.id, [about_case(case, start.experiment, table.FAILED, reason)])
    return table.FAILED
