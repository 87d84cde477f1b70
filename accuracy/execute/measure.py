"""Planned cases measured: one after another in this process, or side by side by a worker on every GPU or thread.

In: the configuration and the cases still to do. Out: the status of each as it ends, its rows in the run folder by then.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from accuracy.config.read import Configuration
from accuracy.core.case import Case
from accuracy.execute import workers as pool
from accuracy.execute.plan import Planned
from accuracy.execute.ranks.base import Launcher
from accuracy.execute.ranks.local import ThisMachine
from accuracy.execute.ranks.pool import Pool
from accuracy.execute.worker_process import Work, write
from accuracy.measure.memory import bytes_needed
from accuracy.measure.pipeline import Measured, Pipeline
from accuracy.reference.cache import Cache
from accuracy.runtime import device
from accuracy.simulate.program import RunRanks, simulate
from accuracy.stack.measure import StackPipeline

Begin = Callable[[Case], None]
"""Told which case is measured next."""


def measure(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], launcher: Launcher | None, begin: Begin
) -> Generator[str, None, None]:
    """To be closed, so that no process stays. launcher: of real ranks' processes; None: this machine."""
    runnable = [each.case for each in pending if each.unsupported is None]
    workers = min(configuration.workers, len(runnable))
    limited = configuration.case_seconds < math.inf and not any(case.world == "processes" for case in runnable)
    if workers > 1 or (workers and limited):  # this process could not end a case of its own
        return _side_by_side(configuration, folder, pending, workers, begin)
    return _one_by_one(configuration, folder, pending, launcher or ThisMachine(), begin)


def _one_by_one(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], launcher: Launcher, begin: Begin
) -> Generator[str, None, None]:
    with _ranks(configuration, pending, launcher) as run_ranks:
        pipeline = _pipeline(configuration, run_ranks)
        for each in pending:
            begin(each.case)
            yield write(folder, each.case, _measured(pipeline, each))


def _side_by_side(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], workers: int, begin: Begin
) -> Generator[str, None, None]:
    """Unsupported cases need no GPU."""
    pipeline = _pipeline(configuration)
    for each in pending:
        if each.unsupported is not None:
            begin(each.case)
            yield write(folder, each.case, _measured(pipeline, each))
    runnable = [each.case for each in pending if each.unsupported is None]
    yield from pool.measure(runnable, work(configuration, folder, workers), begin)


def fitting_workers(configuration: Configuration, plans: Sequence[Planned], free_bytes: int | None) -> int:
    """How many of the configuration's workers there is work for and, where they share one memory, memory for."""
    cases = [each.case for each in plans if each.unsupported is None]
    most = min(configuration.workers, len(cases))
    if configuration.device == "cpu" and free_bytes is not None and cases:
        most = min(most, free_bytes // (max(map(bytes_needed, cases)) + WORKER_BYTES))
    return max(1, most)


WORKER_BYTES = 2**26
"""Of main memory that a worker has for itself, beside a case's: 61 MB measured in a worker of the demo, its small cases
among them (`Private_Dirty` of /proc/PID/smaps_rollup; torch itself is shared)."""


def work(configuration: Configuration, folder: Path, workers: int) -> Work:
    """For so many workers. Where the CPU computes, each has as many threads as one process: its bits stay."""
    gpus: Sequence[int | None] = [None] * workers
    threads = configuration.threads
    if configuration.device == "cuda":
        gpus, threads = device.alike()[:workers], max(1, torch.get_num_threads() // workers)
    pipeline = _pipeline(configuration)
    return Work(pipeline, folder, gpus, threads, configuration.case_seconds)


def _measured(pipeline: Pipeline, each: Planned) -> Measured:
    return pipeline.unsupported(each.case, each.unsupported) if each.unsupported else pipeline.measure(each.case)


def _pipeline(configuration: Configuration, run_ranks: RunRanks | None = None) -> Pipeline:
    simulated = partial(simulate, batched=configuration.batched)
    return StackPipeline(configuration.name, _cache(configuration), run_ranks or simulated, configuration.batched)


def _cache(configuration: Configuration) -> Cache:
    return Cache(configuration.reference_folder, configuration.reference_min_seconds, configuration.reference_method)


@contextmanager
def _ranks(configuration: Configuration, pending: Sequence[Planned], launcher: Launcher) -> Iterator[RunRanks]:
    """What runs a case over its ranks; real ranks live as long as the run."""
    simulated = partial(simulate, batched=configuration.batched)
    real = [each.case for each in pending if each.unsupported is None and each.case.world == "processes"]
    if not real:
        yield simulated
        return
    sizes = sorted({case.world_size for case in real})
    seconds = min(configuration.case_seconds, configuration.timeout_seconds)
    ranks = Pool(tuple(sizes), configuration.backend, seconds, launcher)
    try:
        yield lambda case, shards: (ranks.run if case.world == "processes" else simulated)(case, shards)
        ranks.close()
    finally:
        ranks.kill()
