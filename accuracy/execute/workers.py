"""Cases measured side by side, by a worker process on each GPU or by several on a processor.

Each worker is a `ProcessPoolExecutor` of one process: a process that ends or exceeds the time limit costs the case that
it was measuring, and its device goes to the next process. (pebble has time limits, but waits for ever for a process
that ended with status 0; loky has no time limits.)
"""

import math
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from accuracy.core.case import Case
from accuracy.execute import ahead, watch, worker_process
from accuracy.execute.schedule import Schedule
from accuracy.execute.worker_process import Work, write
from accuracy.measurement.provenance import code_of
from accuracy.results import finished_files

START_SECONDS = 300.0  # for a worker to import torch and to open its GPU
LONGEST_WAIT = 60.0  # between two looks at the time limits


def measure(
    cases: Sequence[Case], work: Work, begin: Callable[[Case], None], meanwhile: Iterable[str] = ()
) -> Generator[str, None, None]:
    """The status of every case as it ends, in any order. begin: told which case a worker gets; meanwhile: statuses of
    what this process does itself, once a worker has every case. To be closed, so that no process stays."""
    meanwhile = iter(meanwhile)
    schedule = Schedule(cases)
    workers: list[_Worker] = []
    try:
        for number, gpu in enumerate(work.gpus):
            workers.append(_Worker(number, work, gpu))
        ahead.end_rest()
        while busy := {future: worker for worker in workers if (future := worker.keep_at_work(schedule, begin))}:
            if schedule.empty:
                for status in meanwhile:
                    yield status
                    if any(future.done() for future in busy) or time.monotonic() > _first_limit(busy):
                        break
            for future in _ended(busy):
                yield from busy[future].hear(schedule)
        yield from meanwhile
        while (case := schedule.take(0)) is not None:
            yield _lost(work, case, "no worker could be started; the terminal says why")
    finally:
        for worker in workers:
            worker.kill()
        ahead.shut_down([worker.executor for worker in workers])


def _first_limit(busy: "dict[Future[Any], _Worker]") -> float:
    return min(worker.deadline for worker in busy.values())


def _ended(busy: "dict[Future[Any], _Worker]") -> set["Future[Any]"]:
    """What ended within the next minute, or before the next time limit; a worker beyond its limit is killed."""
    seconds = _first_limit(busy) - time.monotonic()
    ended, _ = wait(busy, min(max(seconds, 0.0), LONGEST_WAIT), FIRST_COMPLETED)
    for future, worker in busy.items():
        if not future.done() and worker.deadline < time.monotonic():
            worker.late, worker.deadline = True, math.inf
            worker.kill()
    return ended


class _Worker:
    """A device and the process on it, seen from the process that hands out cases."""

    def __init__(self, number: int, work: Work, gpu: int | None) -> None:
        self.number, self.work, self.gpu = number, work, gpu
        self.name = "the worker process" if gpu is None else f"the worker process of GPU {gpu}"
        self.start()

    def start(self) -> None:
        """A new process; ready when it says so."""
        found = ahead.take(self.gpu)
        self.executor, self.process = found.executor, found.process
        self.case: Case | None = None
        self.ready = self.late = False
        self.limit = math.inf
        self.future: Future[Any] | None = None
        try:
            self.submit(START_SECONDS, worker_process.accept, self.work)
        except BrokenProcessPool as error:  # it was started ahead, and has ended
            self.future = Future[Any]()
            self.future.set_exception(error)

    def submit(self, limit: float, function: Callable[..., Any], *given: Any) -> None:
        """Let the process call a function. Raises BrokenProcessPool where the process has ended."""
        self.future = None
        self.begun = time.monotonic()
        self.deadline = self.begun + limit
        self.future = self.executor.submit(function, *given)

    def keep_at_work(self, schedule: Schedule, begin: Callable[[Case], None]) -> "Future[Any] | None":
        """What the process is at; one that is free begins the next case, where there is one."""
        if self.ready and self.future is None and (case := schedule.take(self.number)) is not None:
            try:
                self.limit = watch.limit(case, self.work.case_seconds)
                self.submit(self.limit, worker_process.measure, case)
            except BrokenProcessPool:
                schedule.put_back(self.number, case)
                self.restart(schedule)
            else:
                self.case = case
                begin(case)
        return self.future

    def hear(self, schedule: Schedule) -> Generator[str, None, None]:
        """What the process answered, or how it ended; a process that ended is replaced."""
        future, case = self.future, self.case
        assert future is not None
        self.future = self.case = None
        broken = isinstance(future.exception(), BrokenProcessPool)
        if case is None:
            self.ready = not broken
            if broken:
                print(f"accuracy: {self.name} could not start; going on without it", file=sys.stderr)
        elif broken:
            yield _lost(self.work, case, self.end())
            self.restart(schedule)
        else:
            schedule.note(self.number, time.monotonic() - self.begun)
            status, usable = future.result()
            yield status
            if not usable or self.late:  # late: killed while it answered
                self.restart(schedule)

    def restart(self, schedule: Schedule) -> None:
        """A new process on the device."""
        schedule.leave(self.number)
        self.kill()
        self.executor.shutdown()
        self.start()

    def end(self) -> str:
        """How the process ended."""
        self.process.join()
        code = self.process.exitcode
        if self.late:
            return f"{self.name} was killed after {watch.said(self.limit, self.work.case_seconds)}"
        if code < 0:
            return f"{self.name} was killed by signal {-code} ({signal.strsignal(-code)})"
        return f"{self.name} ended with status {code}"

    def kill(self) -> None:
        """End the process, whatever it is doing; does not wait."""
        self.process.kill()


def _lost(work: Work, case: Case, reason: str) -> str:
    """Status of a case whose worker is gone: as its rows say if they came to the disk, else failed with the reason."""
    found = finished_files.finished_case(work.folder, case.id)
    if found is not None and found.code == code_of(case):
        return found.status
    return write(work.folder, case, work.pipeline.failed(case, reason))
