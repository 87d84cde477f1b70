"""Which process measures a planned case: a worker, this one, or the ranks that take part in it."""

import math
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from accuracy.config.read import Configuration
from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.execute import start, worker
from accuracy.execute.plan import Planned
from accuracy.execute.worker import Work
from accuracy.measurement.pipeline import Pipeline
from accuracy.runtime import arithmetic, device

if TYPE_CHECKING:
    from accuracy.execute.ranks.rank import By, Task
    from accuracy.execute.ranks.rendezvous import Ranks

Begin = Callable[[Case], None]
"""Told which case is measured next."""


@dataclass(frozen=True)
class Launched:
    """Ranks that a launcher started, and the task that each of them has."""

    ranks: "Ranks"
    task: "Task"


def measure(
    configuration: Configuration,
    folder: Path,
    pending: Sequence[Planned],
    launched: Launched | None,
    begin: Begin,
) -> Generator[str, None, None]:
    """Yield the status of each case as it ends, its rows in the folder by then.

    Args:
        configuration: settled; its workers are as many as there is work and memory for.
        folder: of the run.
        pending: the cases to measure.
        launched: the real ranks that this process is the first of.
        begin: told each case as it is measured next.

    The generator is to be closed, so that no process stays.
    """
    if launched is not None:
        from accuracy.execute.ranks import rank_loop

        for case, status in rank_loop.lead(launched.task, launched.ranks, pending):
            begin(case)
            yield status
        return

    def here(pipeline: Pipeline, cases: Iterable[Planned]) -> Generator[str, None, None]:
        for each in cases:
            begin(each.case)
            yield worker.measure_here(pipeline, each, folder, configuration.case_seconds)

    if alone := [each for each in pending if _needs_no_other(each)]:
        from accuracy.measurement.reruns import run_alone
        from accuracy.world.processes import kept_group_of_one

        with kept_group_of_one(configuration.device) as group:
            yield from here(Pipeline(configuration.name, partial(run_alone, group=group), alone=True), alone)
        pending = [each for each in pending if not _needs_no_other(each)]
    runnable = [each.case for each in pending if each.unsupported is None]
    workers = min(configuration.workers, len(runnable))
    if real := [case.world_size for case in runnable if case.world == "processes"]:
        agent = import_module("accuracy.execute.ranks.agent")  # and torch's, which others need not wait for
        yield from agent.measure(task_of(configuration, folder, pending, max(real)), pending, begin)
    elif workers > 1 or (workers and (start.only_workers_measure or configuration.case_seconds < math.inf)):
        from accuracy.execute import pool

        yield from here(_pipeline(configuration), (each for each in pending if each.unsupported is not None))
        yield from pool.measure(runnable, work(configuration, folder, workers), begin)
    else:
        yield from here(_pipeline(configuration), pending)


def _needs_no_other(each: Planned) -> bool:
    """Return whether a case needs no other process: it is of a function given as an object, on one rank or beside such
    a function."""
    case = each.case
    variants = [case.variant] if case.world_size == 1 else []
    variants += [case.against.variant] if case.against is not None and case.world == "simulated" else []
    return any(plugins.is_handed_over(str(dict(variant.options).get("fn", ""))) for variant in variants)


def task_of(
    configuration: Configuration, folder: Path, plans: Sequence[Planned], most: int | None = None, by: "By" = "agent"
) -> "Task":
    """Return what real ranks are to do; most: how many there are; by: who started them. Where the CPU computes, their
    threads decide last digits: as many as this process has."""
    from accuracy.execute.ranks.rank import Task

    asked = {each.case.world_size for each in plans if each.case.world == "processes"}
    sizes = sorted(size for size in asked if most is None or size <= most)
    threads = torch.get_num_threads() if configuration.backend == "gloo" else (os.cpu_count() or 1) // max(sizes)
    return Task(
        cases=[each.case for each in plans],
        pipeline=_pipeline(configuration),
        folder=folder,
        backend=configuration.backend,
        sizes=sizes,
        seconds=min(configuration.case_seconds, configuration.timeout_seconds),
        threads=max(1, threads),
        case_seconds=configuration.case_seconds,
        switches=arithmetic.functions_run_with(),
        by=by,
        shared=sorted({each.case.world_size for each in plans if each.case.sums and each.case.world_size in sizes}),
    )


def fitting_workers(configuration: Configuration, plans: Sequence[Planned], free_bytes: int | None) -> int:
    """Return how many of the configuration's workers there is work for and, where they share one memory, memory for."""
    measurable = [each for each in plans if each.unsupported is None]
    most = min(configuration.workers, len(measurable))
    if free_bytes is None or not measurable:
        return max(1, most)
    memories, own = (1, WORKER_BYTES) if configuration.device == "cpu" else (len(device.alike()), CONTEXT_BYTES)
    fitting = memories * (free_bytes // (max(each.bytes for each in measurable) + own))
    return max(min(most, memories), min(most, fitting))


WORKER_BYTES = 2**26
"""Of main memory that a worker has for itself, beside a case's: 61 MB measured in a worker of the demo, its small cases
among them (`Private_Dirty` of /proc/PID/smaps_rollup; torch itself is shared)."""

CONTEXT_BYTES = 2**30
"""Of a GPU's memory that each process on it takes for itself: a CUDA context and its libraries."""


def work(configuration: Configuration, folder: Path, workers: int) -> Work:
    """Return what the workers do. Where the CPU computes, each has as many threads as one process, as they decide
    the last digits."""
    on_cpu = configuration.device == "cpu"
    threads = configuration.threads if on_cpu else max(1, torch.get_num_threads() // workers)
    gpus = [None] * workers if on_cpu else list(islice(cycle(device.alike()), workers))
    return Work(_pipeline(configuration), folder, gpus, threads, configuration.case_seconds)


def _pipeline(configuration: Configuration) -> Pipeline:
    return Pipeline(configuration.name, batched=configuration.batched)
