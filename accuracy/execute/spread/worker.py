"""A process that measures: takes a case after the other on its device, writes each one's rows, says how it ended.

Rows go from here to the disk, under a name of the case's own, whole or not at all: through the process that hands out
the cases they would all have to pass one by one. It ends when that process is gone or kills it, and when a case has
broken its device for all that follow.
"""

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from accuracy.core.case import Case
from accuracy.execute.ranks.base import READY
from accuracy.execute.ranks.worker import end_with
from accuracy.execute.spread.schedule import Spent
from accuracy.measure.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results import table
from accuracy.runtime import arithmetic
from accuracy.simulate.program import Ran, simulate
from accuracy.world.base import Tensors


@dataclass(frozen=True)
class Start:
    """How a worker measures. gpu: None on the CPU; threads: of its CPU work."""

    experiment: str
    folder: Path
    cache: Cache
    gpu: int | None
    threads: int


@dataclass(frozen=True)
class Told:
    """How a case ended, its rows on disk. broken: the worker ends, its device does no more for it."""

    status: str
    spent: Spent
    broken: bool


def serve(start: Start, cases: Connection, lifeline: Connection) -> None:
    """The worker's life: READY, then Told for every Case."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # the process that hands out cases hears of it too, and ends us
    end_with(lifeline)
    arithmetic.make_exact()
    torch.set_num_threads(start.threads)
    if start.gpu is not None:
        torch.cuda.set_device(start.gpu)
        torch.cuda.synchronize()  # finds out whether it is to be had
    clock = _Clock()
    pipeline = Pipeline(start.experiment, start.cache, clock.simulate)
    with contextlib.suppress(EOFError, ConnectionError):  # the other side is gone
        cases.send(READY)
        while True:
            told = _measure(pipeline, clock, cases.recv(), start)
            cases.send(told)
            if told.broken:
                return


class _Clock:
    """Notes when a case's ranks ran first: what was before is preparation."""

    def __init__(self) -> None:
        self.ran: float | None = None

    def simulate(self, case: Case, shards: Sequence[Tensors]) -> Ran:
        self.ran = self.ran or time.perf_counter()
        return simulate(case, shards)


def _measure(pipeline: Pipeline, clock: _Clock, case: Case, start: Start) -> Told:
    clock.ran = None
    begun = time.perf_counter()
    measured = pipeline.measure(case)
    table.write_case(start.folder, case.id, measured.results, measured.positions, measured.steps)
    ended = time.perf_counter()
    ran = clock.ran or ended
    broken = measured.status == table.FAILED and _is_broken(start.gpu)
    return Told(measured.status, Spent(ran - begun, ended - ran), broken)


def _is_broken(gpu: int | None) -> bool:
    """Whether an error stays with this process: after an illegal address CUDA refuses everything."""
    try:
        if gpu is not None:
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
