"""Planned cases measured: one after another in this process, side by side by a worker on every GPU or thread, or on
real ranks.

In: the configuration and the cases still to do. Out: the status of each as it ends, its rows in the run folder by then.
"""

import math
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from accuracy.config.read import Configuration
from accuracy.core.case import Case
from accuracy.execute import workers as pool
from accuracy.execute.plan import Planned, measured
from accuracy.execute.ranks import agent, alone, rank_loop
from accuracy.execute.ranks.rank_loop import Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.execute.worker_process import Work, write
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.runtime import device
from accuracy.simulate.program import simulate
from accuracy.stack.measure import StackPipeline

Begin = Callable[[Case], None]
"""Told which case is measured next."""


def measure(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], launched: "Launched | None", begin: Begin
) -> Generator[str, None, None]:
    """To be closed, so that no process stays. launched: the real ranks that this process is the first of."""
    if launched is not None:
        return _launched(launched, pending, begin)
    if any(alone.can(each.case) for each in pending):
        return _alone_first(configuration, folder, pending, begin)
    runnable = [each.case for each in pending if each.unsupported is None]
    if any(case.world == "processes" for case in runnable):
        return _on_ranks(configuration, folder, pending, begin)
    workers = min(configuration.workers, len(runnable))
    if workers > 1 or (workers and configuration.case_seconds < math.inf):  # this process could not end its own case
        return _side_by_side(configuration, folder, pending, workers, begin)
    return _one_by_one(_pipeline(configuration), folder, pending, begin)


@dataclass(frozen=True)
class Launched:
    """Ranks that a launcher started, and the task that each of them has."""

    ranks: Ranks
    task: Task


def task_of(configuration: Configuration, folder: Path, plans: Sequence[Planned], most: int | None = None) -> Task:
    """What real ranks are to do; most: how many there are. Where the CPU computes, their threads decide last digits: as
    many as this process has."""
    asked = {each.case.world_size for each in plans if each.case.world == "processes"}
    sizes = sorted(size for size in asked if most is None or size <= most)
    gloo = configuration.backend == "gloo"
    return Task(
        cases=[each.case for each in plans],
        pipeline=_pipeline(configuration),
        folder=folder,
        backend=configuration.backend,
        sizes=sizes,
        seconds=min(configuration.case_seconds, configuration.timeout_seconds),
        threads=torch.get_num_threads() if gloo else max(1, (os.cpu_count() or 1) // max(sizes)),
    )


def _launched(launched: Launched, pending: Sequence[Planned], begin: Begin) -> Generator[str, None, None]:
    for case, status in rank_loop.lead(launched.task, launched.ranks, pending):
        begin(case)
        yield status


def _on_ranks(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], begin: Begin
) -> Generator[str, None, None]:
    most = max(each.case.world_size for each in pending if each.unsupported is None and each.case.world == "processes")
    return agent.measure(task_of(configuration, folder, pending, most), pending, begin)


def _alone_first(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], begin: Begin
) -> Generator[str, None, None]:
    alone_here = [each for each in pending if alone.can(each.case)]
    yield from _one_by_one(Pipeline(configuration.name, _cache(configuration), alone.run), folder, alone_here, begin)
    if others := [each for each in pending if not alone.can(each.case)]:
        yield from measure(configuration, folder, others, None, begin)


def _one_by_one(
    pipeline: Pipeline, folder: Path, pending: Sequence[Planned], begin: Begin
) -> Generator[str, None, None]:
    for each in pending:
        begin(each.case)
        yield write(folder, each.case, measured(pipeline, each))


def _side_by_side(
    configuration: Configuration, folder: Path, pending: Sequence[Planned], workers: int, begin: Begin
) -> Generator[str, None, None]:
    """Unsupported cases need no GPU."""
    pipeline = _pipeline(configuration)
    for each in pending:
        if each.unsupported is not None:
            begin(each.case)
            yield write(folder, each.case, measured(pipeline, each))
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


def _pipeline(configuration: Configuration) -> Pipeline:
    simulated = partial(simulate, batched=configuration.batched)
    return StackPipeline(configuration.name, _cache(configuration), simulated, configuration.batched)


def _cache(configuration: Configuration) -> Cache:
    return Cache(configuration.reference_folder, configuration.reference_min_seconds, configuration.reference_method)
