"""Planned cases measured: one after another in this process, or side by side by a worker on every GPU or thread.

In: the configuration and the cases still to do. Out: the status of each as it ends, its rows in the run folder by then.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from accuracy.config.read import Configuration
from accuracy.core.case import Case
from accuracy.execute.plan import Planned
from accuracy.execute.ranks.base import Launcher
from accuracy.execute.ranks.local import ThisMachine
from accuracy.execute.ranks.pool import Pool
from accuracy.execute.spread import pool as crowd
from accuracy.execute.spread.worker import Start
from accuracy.measure.memory import bytes_needed
from accuracy.measure.pipeline import Measured, Pipeline
from accuracy.reference.cache import Cache
from accuracy.results import table
from accuracy.runtime import device
from accuracy.simulate.program import RunRanks, simulate

Begin = Callable[[Case], None]
"""Told which case is measured next."""


def measure(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], launcher: Launcher | None, begin: Begin
) -> Generator[str, None, None]:
    """To be closed, so that no process stays. launcher: of real ranks' processes; None: this machine."""
    runnable = sum(each.unsupported is None for each in pending)
    workers = min(configuration.workers, runnable)
    if workers > 1:
        return _side_by_side(configuration, folder, pending, workers, begin)
    return _one_by_one(configuration, folder, pending, launcher or ThisMachine(), begin)


def _one_by_one(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], launcher: Launcher, begin: Begin
) -> Generator[str, None, None]:
    with _ranks(configuration, pending, launcher) as run_ranks:
        pipeline = Pipeline(configuration.name, _cache(configuration), run_ranks)
        for each in pending:
            begin(each.case)
            yield _write(folder, each.case, _road(pipeline, each))


def _side_by_side(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], workers: int, begin: Begin
) -> Generator[str, None, None]:
    """Unsupported cases need no GPU."""
    pipeline = Pipeline(configuration.name, _cache(configuration))
    for each in pending:
        if each.unsupported is not None:
            begin(each.case)
            yield _write(folder, each.case, _road(pipeline, each))
    runnable = [each.case for each in pending if each.unsupported is None]
    yield from crowd.measure(runnable, starts(configuration, folder, workers), begin)


def fitting_workers(configuration: Configuration, plans: Sequence[Planned], free_bytes: int | None) -> int:
    """How many of the configuration's workers there is work for and, where they share one memory, workspace."""
    cases = [each.case for each in plans if each.unsupported is None]
    most = min(configuration.workers, len(cases))
    if configuration.device == "cpu" and free_bytes is not None and cases:
        most = min(most, free_bytes // (max(map(bytes_needed, cases)) + WORKER_BYTES))
    return max(1, most)


WORKER_BYTES = 2**26
"""Of main memory that a worker has for itself, beside a case's: 61 MB measured in a worker of the demo, its small cases
among them (`Private_Dirty` of /proc/PID/smaps_rollup; torch itself is shared)."""


def starts(configuration: Configuration, folder: Path, workers: int) -> list[Start]:
    """How so many workers measure. Where the CPU computes, each has as many threads as one process: its bits stay."""
    gpus: Sequence[int | None] = [None] * workers
    threads = configuration.threads
    if configuration.device == "cuda":
        gpus, threads = device.alike()[:workers], max(1, torch.get_num_threads() // workers)
    return [Start(configuration.name, folder, _cache(configuration), gpu, threads) for gpu in gpus]


def _road(pipeline: Pipeline, each: Planned) -> Measured:
    return pipeline.unsupported(each.case, each.unsupported) if each.unsupported else pipeline.measure(each.case)


def _write(folder: Path, case: Case, measured: Measured) -> str:
    table.write_case(folder, case.id, measured.results, measured.positions, measured.steps)
    return measured.status


def _cache(configuration: Configuration) -> Cache:
    return Cache(configuration.reference_folder, configuration.reference_min_seconds, configuration.reference_method)


@contextmanager
def _ranks(configuration: Configuration, pending: Sequence[Planned], launcher: Launcher) -> Iterator[RunRanks]:
    """What runs a case over its ranks; real ranks live as long as the run."""
    real = [each.case for each in pending if each.unsupported is None and each.case.world == "processes"]
    if not real:
        yield simulate
        return
    sizes = sorted({case.world_size for case in real})
    pool = Pool(tuple(sizes), configuration.backend, configuration.case_seconds, launcher)
    try:
        yield lambda case, shards: (pool.run if case.world == "processes" else simulate)(case, shards)
        pool.close()
    finally:
        pool.kill()
