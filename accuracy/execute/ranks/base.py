"""The words that a pool and the processes of its ranks exchange, and what a pool asks of a rank's process."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from accuracy.core.case import Case
from accuracy.runtime import device
from accuracy.world.base import Results, Tensors

START_SECONDS = 120.0  # for all ranks to import torch and to find each other


class WorldFailed(RuntimeError):
    """Ranks of real processes could not finish a case: which, and why."""


class RankEnded(WorldFailed):
    """A rank's process is gone."""


@dataclass(frozen=True)
class Start:
    """How a worker joins the others.

    sizes: the world sizes that will be asked for, the largest last: as many processes; store: where they find each
    other, `file://PATH` or `tcp://HOST:PORT/PREFIX`; threads: of its CPU work; gpu: its device, for nccl; one_host:
    whether all ranks are on one machine; far: whether its results leave the machine.
    """

    rank: int
    sizes: tuple[int, ...]
    backend: str
    store: str
    threads: int
    gpu: int
    one_host: bool = True
    far: bool = False


def threads_of(backend: str, neighbours: int) -> int:
    """Of the processor, for a rank that shares a machine with so many, itself among them. Where the CPU computes they
    decide last digits: as many as this process has, whose simulated ranks are the measure of real ones."""
    return torch.get_num_threads() if backend == "gloo" else max(1, (os.cpu_count() or 1) // neighbours)


@dataclass(frozen=True)
class Job:
    """A case and this rank's q, k, v, dout (B, S/W, heads, D)."""

    case: Case
    shards: Tensors


@dataclass(frozen=True)
class Done:
    """out, lse, dq, dk, dv of this rank as stored, and what they took."""

    results: Results
    cost: device.Cost


@dataclass(frozen=True)
class Failed:
    """Why this rank has no results."""

    reason: str


READY = "ready"


class Worker(Protocol):
    """A rank's process, here or on another machine."""

    @property
    def rank(self) -> int:
        """Its rank among all processes."""
        ...

    @property
    def signs(self) -> Sequence[Any]:
        """What `multiprocessing.connection.wait` watches: one is ready when `receive` has something to say."""
        ...

    def send(self, message: Job | None) -> None:
        """A job, or None: no more will come. Raises WorldFailed."""
        ...

    def receive(self) -> Any:
        """READY, Done or Failed. Raises RankEnded where the process has ended instead."""
        ...

    def kill(self) -> None:
        """End the process, whatever it is doing; does not wait."""
        ...

    def join(self) -> None:
        """Wait until it is gone."""
        ...


class Launcher(Protocol):
    """Where a pool's processes come from."""

    def start(self, sizes: tuple[int, ...], backend: str) -> Iterator[Worker]:
        """Start as many as the largest size, in rank order."""
        ...

    def clean(self) -> None:
        """Called when all of them are gone."""
        ...
