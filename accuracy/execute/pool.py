"""Cases measured by worker processes, side by side: one on each GPU, several on one, or several on the CPU.

Each process has one case in hand. Where a process ends, or is killed because its case takes too long, that case alone
is a failed row with the reason, and a new process takes the device.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from accuracy.core.case import Case
from accuracy.execute import start, worker
from accuracy.execute.worker import Work, seconds_allowed, seconds_text, stack_file
from accuracy.measurement.observe import shared
from accuracy.measurement.provenance import code_of
from accuracy.results import storage

START_SECONDS = 300.0  # for a worker to import torch and to open its GPU
STACK_SECONDS = 1.0  # from the limit of a case on, for the worker to write where it is
LONGEST_WAIT = 60.0  # between two looks at the time limits
END_SECONDS = 10.0  # for a killed process to be gone
LEAST_PAIRS = 2**20
"""Below so many pairs of a query and a key, launches and Python take the time: all such cases count alike."""


def measure(cases: Sequence[Case], work: Work, begin: Callable[[Case], None]) -> Generator[str, None, None]:
    """Yield the status of every case as it ends, in any order. Its rows are in the folder then.

    Args:
        cases: all are of a simulated world.
        work: what each worker does, on which device.
        begin: told each case as a worker gets it.

    The generator is to be closed, so that no process stays.
    """
    temporary = tempfile.TemporaryDirectory(prefix="accuracy-", ignore_cleanup_errors=True)
    with temporary as stacks, start.no_process_stays():
        queue, workers = Queue(cases), list[_Worker]()
        try:
            for number, gpu in enumerate(work.gpus):
                workers.append(_Worker(number, gpu, work, Path(stacks)))
            while busy := [each for each in workers if each.keep_busy(queue, begin)]:
                by_handle: dict[Any, _Worker] = {handle: each for each in busy for handle in each.handles}
                seconds = min(each.deadline for each in busy) - time.monotonic()
                ready = wait([*by_handle], min(max(seconds, 0.0), LONGEST_WAIT))
                for each in {by_handle[handle] for handle in ready}:
                    yield from each.hear(queue)
                for each in busy:
                    each.kill_if_late()
            while (case := queue.take(0)) is not None:
                yield _lost(work, case, "no worker process is left; the terminal says why")
        finally:
            for each in workers:
                each.process.kill()
            for each in workers:
                each.close()


class _Worker:
    """A device and the process on it. case: what the process measures; ready: whether it has opened its device."""

    def __init__(self, number: int, gpu: int | None, work: Work, stacks: Path) -> None:
        self.number, self.gpu, self.work, self.stacks = number, gpu, work, stacks
        self.name = "the worker process" if gpu is None else f"the worker process of GPU {gpu}"
        self.usable = True
        self.start()

    def start(self) -> None:
        """Start a process on the device."""
        context = multiprocessing.get_context("forkserver")
        self.connection, other = context.Pipe()
        arguments = other, self.gpu, self.work, {**os.environ}, self.stacks
        self.process = context.Process(target=worker.serve, args=arguments, name=self.name)
        start.start_server(start.OF_WORKERS)
        with start.starting():
            self.process.start()
        other.close()
        self.case: Case | None = None
        self.ready = self.late = False
        self.deadline = time.monotonic() + START_SECONDS

    @property
    def handles(self) -> list[Any]:
        """Return the connection and the sentinel of the process: one of them can be read once it answers or ends."""
        return [self.connection, self.process.sentinel]

    def keep_busy(self, queue: "Queue", begin: Callable[[Case], None]) -> bool:
        """Send a free process its next case; return whether the process has something to do."""
        free = self.usable and self.ready and self.case is None
        if free and (case := queue.take(self.number)) is not None:
            self.case = case
            self.deadline = time.monotonic() + seconds_allowed(case, self.work.case_seconds) + STACK_SECONDS
            begin(case)
            with suppress(OSError):  # where the process has ended: `hear` says so of the case
                self.connection.send(case)
        return self.usable and (self.case is not None or not self.ready)

    def hear(self, queue: "Queue") -> Generator[str, None, None]:
        """Yield the status of the case, as the process answered or as it ended; replace a process that ended."""
        try:
            ended, answer = False, self.connection.recv() if self.connection.poll() else None
        except (EOFError, OSError):
            ended, answer = True, None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            self.case = None
            yield answer[0]
            if not answer[1] or self.late:
                self.restart(queue)
        elif not self.ready and not ended and self.process.exitcode is None:
            self.ready = True
        elif self.case is None:
            self.usable = False
            queue.leave(self.number)
            print(f"accuracy: {self.name} could not start; going on without it", file=sys.stderr)
        else:
            yield _lost(self.work, self.case, *self.end())
            self.restart(queue)

    def restart(self, queue: "Queue") -> None:
        """Start another process in place of this one."""
        queue.leave(self.number)
        self.process.kill()
        self.close()
        self.start()

    def end(self) -> tuple[str, str]:
        """Return how the process ended, and where it was when its case reached the limit."""
        assert self.case is not None
        self.process.join(END_SECONDS)
        code = self.process.exitcode
        if self.late:
            file = stack_file(self.stacks, self.process.pid or 0)
            text = file.read_text() if file.exists() else ""
            return f"{self.name} was killed after {seconds_text(self.case, self.work.case_seconds)}", text
        if code is not None and code < 0:
            return f"{self.name} was killed by signal {-code} ({signal.strsignal(-code)})", ""
        return f"{self.name} ended with status {code}", ""

    def kill_if_late(self) -> None:
        """Kill the process once its start or its case has taken too long; does not wait for its end."""
        if time.monotonic() > self.deadline and (self.case is not None or not self.ready):
            self.late, self.deadline = True, float("inf")
            self.process.kill()

    def close(self) -> None:
        """Wait for the end of a killed process, and leave nothing of it."""
        self.process.join(END_SECONDS)
        self.connection.close()
        stack_file(self.stacks, self.process.pid or 0).unlink(missing_ok=True)


def _lost(work: Work, case: Case, reason: str, traceback: str = "") -> str:
    """Return the status of a case whose worker is gone: that of its rows if they came to the disk, else failed."""
    found = storage.finished_case(work.folder, case.id)
    if found is not None and found.code == code_of(case):
        return found.status
    return worker.write(work.folder, case, replace(work.pipeline.failed(case, reason), traceback=traceback))


class Queue:
    """Which case a free worker measures next.

    Cases that share inputs and reference are a group. A worker keeps its group until no case of it is left. Then it
    opens the largest group that no worker has. Where every group has a worker, it joins the one with most cases left
    for each of its workers, and computes that group's reference again.
    """

    def __init__(self, cases: Iterable[Case]) -> None:
        groups: dict[object, list[Case]] = {}
        for case in cases:
            groups.setdefault(shared(case), []).append(case)
        largest = sorted(
            groups.values(), key=lambda group: -sum(max(each.problem.pairs, LEAST_PAIRS) for each in group)
        )
        # large worlds first: the cases that end last are then short
        self._left = [deque(sorted(group, key=lambda case: -case.world_size)) for group in largest]
        self._of: dict[int, int] = {}  # the group of each worker

    def take(self, worker: int) -> Case | None:
        """Return the worker's next case; None: no case is left."""
        if worker not in self._of or not self._left[self._of[worker]]:
            self.leave(worker)
            workers = Counter(self._of.values())
            groups = [number for number, left in enumerate(self._left) if left]
            if not groups:
                return None
            opened = all(workers[number] for number in groups)
            self._of[worker] = max(
                groups, key=lambda number: len(self._left[number]) / workers[number] if opened else not workers[number]
            )
        return self._left[self._of[worker]].popleft()

    def leave(self, worker: int) -> None:
        """Learn that the worker has ended, or is about to change its group."""
        self._of.pop(worker, None)
