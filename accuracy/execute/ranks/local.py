"""Ranks, and other workers, as child processes on this machine."""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from accuracy.execute.ranks.base import RankEnded, Start, threads_of
from accuracy.execute.ranks.worker import serve


@dataclass(frozen=True)
class LocalWorker:
    """A child process, its pipe, and the end of the pipe whose closing ends it; see
    `accuracy.execute.ranks.base.Worker`.

    title: what it is called where it is the reason that something failed.
    """

    rank: int
    title: str
    process: BaseProcess
    jobs: Connection
    lifeline: Connection

    @property
    def signs(self) -> tuple[Any, ...]:
        """See `Worker.signs`."""
        return self.jobs, self.process.sentinel

    def send(self, message: Any) -> None:
        """See `Worker.send`."""
        try:
            self.jobs.send(message)
        except OSError as error:
            raise self._gone() from error

    def receive(self) -> Any:
        """See `Worker.receive`."""
        try:
            answer = self.jobs.recv() if self.jobs.poll() else None
        except (EOFError, OSError):
            answer = None
        if answer is None:
            raise self._gone()
        return answer

    def kill(self) -> None:
        """See `Worker.kill`."""
        self.process.kill()

    def join(self) -> None:
        """See `Worker.join`."""
        self.process.join()
        self.jobs.close()
        self.lifeline.close()

    def _gone(self) -> RankEnded:
        """How a process that no longer answers has ended."""
        self.process.join(timeout=5)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        return RankEnded(f"{self.title} {how}")


def start(how: Start) -> LocalWorker:
    """A new child process that joins the others as `how` says."""
    return child(serve, how, how.rank, f"rank {how.rank}")


def child(life: Callable[[Any, Connection, Connection], None], how: Any, number: int, title: str) -> LocalWorker:
    """A new child process that lives `life`: how, its pipe, and a pipe that closes when this process is gone."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([life.__module__])  # imported once, not by each child
    ours, theirs = context.Pipe()
    lifeline, watched = context.Pipe()
    process = context.Process(target=life, args=(how, theirs, watched), name=title, daemon=True)
    process.start()
    theirs.close()
    watched.close()
    return LocalWorker(number, title, process, ours, lifeline)


class ThisMachine:
    """All ranks on this machine; they meet in a file. See `accuracy.execute.ranks.base.Launcher`."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, sizes: tuple[int, ...], backend: str) -> Iterator[LocalWorker]:
        """See `Launcher.start`."""
        self.folder = tempfile.TemporaryDirectory(prefix="accuracy-")  # new groups meet there too
        store = f"file://{Path(self.folder.name) / 'store'}"
        threads = threads_of(backend, sizes[-1])
        for rank in range(sizes[-1]):
            yield start(Start(rank, sizes, backend, store, threads, gpu=rank))

    def clean(self) -> None:
        """See `Launcher.clean`."""
        if self.folder is not None:
            self.folder.cleanup()
