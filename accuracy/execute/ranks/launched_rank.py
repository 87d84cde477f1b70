"""What a launched process other than the first does: it keeps one rank's worker for the crew of the first.

It starts a worker when told to, hands jobs to it and its answers back, says how it ended, kills it when told to.
So a worker that dies or hangs costs its case, not the launched processes, which a cluster's scheduler would end
together.
"""

import contextlib
import signal
import socket
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import torch

from accuracy.execute.ranks import local, rendezvous
from accuracy.execute.ranks.base import Start, WorldFailed
from accuracy.execute.ranks.launch import Launch
from accuracy.execute.ranks.local import LocalWorker
from accuracy.execute.ranks.wire import Wire


@dataclass(frozen=True)
class Hello:
    """The rank that a keeper is for, and where it is; gpu: the device of its worker and its unique id, if any."""

    rank: int
    host: str
    gpu: int
    gpu_id: str | None


@dataclass(frozen=True)
class Kill:
    """End the worker."""


@dataclass(frozen=True)
class Killed:
    """There is no worker now, and nothing more to come from the last one."""


@dataclass(frozen=True)
class Ended:
    """How the worker ended by itself."""

    how: str


def hello(launch: Launch) -> Hello:
    """This process's. A scheduler that shows a process one GPU has chosen for it."""
    count = torch.cuda.device_count()
    gpu = 0 if count <= 1 else launch.local_rank
    gpu_id = str(torch.cuda.get_device_properties(gpu).uuid) if gpu < count else None
    return Hello(launch.rank, socket.gethostname(), gpu, gpu_id)


def keep(launch: Launch) -> None:
    """Serve until the first process is gone. Raises ConfigError where there is none."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first process hears of it too, and ends us when it is done
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wire = rendezvous.join(launch)
    worker: LocalWorker | None = None
    try:
        with contextlib.suppress(EOFError, OSError):
            wire.send(hello(launch))
            while True:
                watched: list[Any] = [wire, *(worker.signs if worker else ())]
                ready = wait(watched)
                worker = _obey(wire, worker) if wire in ready else _report(wire, worker)
    finally:
        _end(worker)


def _obey(wire: Wire, worker: LocalWorker | None) -> LocalWorker | None:
    message: Any = wire.recv()
    if isinstance(message, Start):
        return local.start(message)
    if isinstance(message, Kill):
        _end(worker)
        wire.send(Killed())
        return None
    if worker is not None:
        with contextlib.suppress(WorldFailed):  # its sign is ready, too
            worker.send(message)
    return worker


def _report(wire: Wire, worker: LocalWorker | None) -> LocalWorker | None:
    if worker is None:
        return None
    try:
        wire.send(worker.receive())
    except WorldFailed as failed:
        wire.send(Ended(str(failed)))
        _end(worker)
        return None
    return worker


def _end(worker: LocalWorker | None) -> None:
    if worker is not None:
        worker.kill()
        worker.join()
