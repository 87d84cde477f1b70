"""The ranks of a processes world on this machine: started once, used by every case, rebuilt after a fault.

World sizes below the pool's are served by its first ranks, so a grid pays for starting processes once. A rank that
raises, dies, or does not answer in time ends its case with the reason; the others may wait for it in the middle of a
transfer, so all are stopped, and the next case finds new ones.
"""

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from accuracy import device
from accuracy.case import Case
from accuracy.program import Ran
from accuracy.ranks.worker import Failed, Job, Start, serve
from accuracy.world.base import Tensors

START_SECONDS = 120.0  # for all ranks to import torch and to find each other


class WorldFailed(RuntimeError):
    """Ranks of real processes could not finish a case: which, and why."""


@dataclass(frozen=True)
class Worker:
    """A rank's process, its pipe, and the end of the pipe whose closing ends it."""

    rank: int
    process: BaseProcess
    jobs: Connection
    lifeline: Connection


@dataclass
class Pool:
    """sizes: the world sizes to come, in order; backend: gloo or nccl; timeout: seconds that a case may take."""

    sizes: tuple[int, ...]
    backend: str
    timeout: float
    workers: list[Worker] = field(default_factory=list)
    folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, case: Case, shards: Sequence[Tensors]) -> Ran:
        """Run a case on its shards (q, k, v, dout) of every rank, results on the device of the shards.

        Raises WorldFailed, after which the pool is empty and starts anew with the next case.
        """
        try:
            if not self.workers:
                self._start()
            members = self.workers[: case.world_size]
            for worker, mine in zip(members, shards, strict=True):
                _send(worker, Job(case, mine))
            answers = self._collect(members, self.timeout)
        except BaseException:
            self.kill()
            raise
        where = shards[0][0].device
        peaks = [answer.cost.peak_bytes for answer in answers]
        return Ran(
            results=[tuple(x if x is None else x.to(where) for x in answer.results) for answer in answers],
            cost=device.Cost(
                seconds=max(answer.cost.seconds for answer in answers),
                peak_bytes=None if None in peaks else max(peak for peak in peaks if peak is not None),
            ),
        )

    def close(self) -> None:
        """Let the workers end by themselves, then see to it."""
        for worker in self.workers:
            with contextlib.suppress(WorldFailed):
                _send(worker, None)
        for worker in self.workers:
            worker.process.join(timeout=5)
        self.kill()

    def kill(self) -> None:
        """No worker is left behind, whatever it is doing."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.jobs.close()
            worker.lifeline.close()
        self.workers = []
        if self.folder is not None:
            self.folder.cleanup()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["accuracy.ranks.worker"])
        self.folder = tempfile.TemporaryDirectory(prefix="accuracy-")  # new groups meet there too
        store = str(Path(self.folder.name) / "store")
        threads = max(1, (os.cpu_count() or 1) // self.sizes[-1])
        for rank in range(self.sizes[-1]):
            self.workers.append(_worker(context, Start(rank, self.sizes, self.backend, store, threads)))
        self._collect(self.workers, START_SECONDS)

    def _collect(self, members: Sequence[Worker], seconds: float) -> list[Any]:
        """One answer of each member, in rank order. Raises WorldFailed at the first sign of trouble."""
        deadline = time.monotonic() + seconds
        answers: dict[int, Any] = {}
        while len(answers) < len(members):
            waiting = [worker for worker in members if worker.rank not in answers]
            ready = wait(
                [each for worker in waiting for each in (worker.jobs, worker.process.sentinel)],
                timeout=max(0.0, deadline - time.monotonic()),
            )
            if not ready:
                raise WorldFailed(f"no answer from {_names(waiting)} within {seconds:g} s")
            for worker in waiting:
                if worker.jobs in ready or worker.process.sentinel in ready:
                    answers[worker.rank] = _receive(worker)
        return [answers[worker.rank] for worker in members]


def _worker(context: Any, start: Start) -> Worker:
    ours, theirs = context.Pipe()
    lifeline, watched = context.Pipe()
    process = context.Process(target=serve, args=(start, theirs, watched), daemon=True)
    process.start()
    theirs.close()
    watched.close()
    return Worker(start.rank, process, ours, lifeline)


def _send(worker: Worker, message: Job | None) -> None:
    try:
        worker.jobs.send(message)
    except OSError as error:
        raise _gone(worker) from error


def _gone(worker: Worker) -> WorldFailed:
    """How a process that no longer answers has ended."""
    worker.process.join(timeout=5)
    code = worker.process.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
    return WorldFailed(f"rank {worker.rank} {how}")


def _receive(worker: Worker) -> Any:
    """The worker's answer. Raises WorldFailed where there is none to come."""
    try:
        answer = worker.jobs.recv() if worker.jobs.poll() else None
    except (EOFError, OSError):
        answer = None
    if answer is None:
        raise _gone(worker)
    if isinstance(answer, Failed):
        raise WorldFailed(f"rank {worker.rank}: {answer.reason}")
    return answer


def _names(workers: Sequence[Worker]) -> str:
    ranks = ", ".join(str(worker.rank) for worker in workers)
    return f"rank {ranks}" if len(workers) == 1 else f"ranks {ranks}"
