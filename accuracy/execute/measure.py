"""Planned cases measured: one after another in this process, side by side by workers, or on real ranks."""

import math
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from accuracy.config.read import Configuration
from accuracy.core import given
from accuracy.core.case import Case, Variant
from accuracy.core.errors import located
from accuracy.execute import attend, watch
from accuracy.execute import workers as pool
from accuracy.execute.plan import Planned, measured
from accuracy.execute.ranks import rank_loop
from accuracy.execute.ranks.rank_loop import Task
from accuracy.execute.ranks.rendezvous import Ranks
from accuracy.execute.worker_process import Work, device_works, write
from accuracy.measurement.pipeline import Measured, Pipeline
from accuracy.measurement.repeats import copies, repeat
from accuracy.reference.cache import Cache
from accuracy.results import table
from accuracy.runtime import arithmetic, device
from accuracy.simulate.program import Ran, build_kernel, rank_program, simulate
from accuracy.stack.measure import StackPipeline
from accuracy.world.alone import group_of_one
from accuracy.world.base import Tensors
from accuracy.world.processes import ProcessesWorld, run_rank

Begin = Callable[[Case], None]
"""Told which case is measured next."""


ATTENDED_SECONDS = 3.0  # of the watching thread, to end the process
ENDED = 124
"""Exit status of a process that nobody attends: that of timeout(1)."""


@dataclass(frozen=True)
class Launched:
    """Ranks that a launcher started, and the task that each of them has."""

    ranks: Ranks
    task: Task


def measure(
    configuration: Configuration,
    folder: Path,
    pending: Sequence[Planned],
    launched: Launched | None,
    begin: Begin,
) -> Generator[str, None, None]:
    """The status of each case as it ends, its rows in the folder by then. To be closed, so that no process stays.
    launched: the real ranks that this process is the first of."""
    if launched is not None:
        for case, status in rank_loop.lead(launched.task, launched.ranks, pending):
            begin(case)
            yield status
        return
    here = Here(folder, begin, configuration.case_seconds)
    alone = Pipeline(configuration.name, _cache(configuration), _run_alone)
    yield from _one_by_one(alone, (each for each in pending if _can_be_alone(each.case)), here)
    pending = [each for each in pending if not _can_be_alone(each.case)]
    runnable = [each.case for each in pending if each.unsupported is None]
    workers = min(configuration.workers, len(runnable))
    if real := [case.world_size for case in runnable if case.world == "processes"]:
        from accuracy.execute.ranks import agent  # and torch's, which others need not wait for

        yield from agent.measure(task_of(configuration, folder, pending, max(real)), pending, begin)
    elif workers > 1 or (workers and configuration.case_seconds < math.inf):  # this process could not end its own case
        unsupported = (each for each in pending if each.unsupported is not None)  # they need no GPU
        meanwhile = _one_by_one(_pipeline(configuration), unsupported, here)
        yield from pool.measure(runnable, work(configuration, folder, workers), begin, meanwhile)
    else:
        yield from _one_by_one(_pipeline(configuration), pending, here)


@dataclass(frozen=True)
class Here:
    """What this process measures itself: into which folder, whom it tells, and for how long."""

    folder: Path
    begin: Begin
    case_seconds: float


def _one_by_one(pipeline: Pipeline, pending: Iterable[Planned], here: Here) -> Generator[str, None, None]:
    for each in pending:
        here.begin(each.case)
        found = _in_time(pipeline, each, here)
        status = write(here.folder, each.case, found)
        if status == table.FAILED and not device_works(each.case.device):
            attend.let_another_go_on(each.case.id, str(found.rows[0]["reason"]))
        yield status


def _in_time(pipeline: Pipeline, each: Planned, here: Here) -> Measured:
    case, seconds = each.case, watch.limit(each.case, here.case_seconds)
    reason = watch.reason(seconds, here.case_seconds)
    if why := attend.lost(case.id):
        return pipeline.failed(case, why)

    def give_up() -> None:
        why = f"{reason}, and could not be interrupted"
        attend.let_another_go_on(case.id, why)
        write(here.folder, case, pipeline.failed(case, why))
        print(f"\naccuracy: case {case.id} {why}; this process ends", file=sys.stderr, flush=True)
        os._exit(ENDED)

    try:
        longest = seconds + watch.GRACE_SECONDS + ATTENDED_SECONDS
        with attend.in_hand(case.id, longest, f"{reason}, and could not be ended"), watch.watched(seconds, give_up):
            return measured(pipeline, each)
    except watch.TookTooLong as error:
        place = located(error).removeprefix("TookTooLong:").strip()
        text = "".join(traceback.format_exception(error))
        return replace(pipeline.failed(case, f"{reason} {place}".rstrip()), traceback=text)


def _can_be_alone(case: Case) -> bool:
    """Whether the case is one of a function given as an object, on one rank, or beside such a function: it needs no
    other process."""
    if case.against is not None and case.world == "simulated" and _is_given(case.against.variant):
        return True
    return case.world_size == 1 and _is_given(case.variant)


def _is_given(variant: Variant) -> bool:
    return str(dict(variant.options).get("fn", "")).startswith(given.PREFIX)


def _run_alone(case: Case, shards: Sequence[Tensors]) -> Ran:
    """As `RunRanks`. Raises what the function raises."""
    if case.world == "simulated":
        return simulate(case, shards)
    program = rank_program(case, build_kernel(case), shards)
    with group_of_one(case.device) as group:
        world = ProcessesWorld(0, 1, group)
        with device.measured(case.device) as cost, device.poisoned(case.reruns.poison):
            results = run_rank(program, world)
        results = copies(results)  # a function may return a buffer that it fills again
        told = repeat(results, lambda: run_rank(program, world), case.reruns.repeat)
    return Ran([results], cost, [told])


def task_of(
    configuration: Configuration, folder: Path, plans: Sequence[Planned], most: int | None = None, callers: bool = False
) -> Task:
    """What real ranks are to do; most: how many there are; callers: whether they are the caller's own processes. Where
    the CPU computes, their threads decide last digits: as many as this process has."""
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
        callers=callers,
    )


def fitting_workers(configuration: Configuration, plans: Sequence[Planned], free_bytes: int | None) -> int:
    """How many of the configuration's workers there is work for and, where they share one memory, memory for."""
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
    """For so many workers. Where the CPU computes, each has as many threads as one process: its bits stay."""
    on_cpu = configuration.device == "cpu"
    threads = configuration.threads if on_cpu else max(1, torch.get_num_threads() // workers)
    gpus = device.each_of(workers, configuration.device)
    return Work(_pipeline(configuration), folder, gpus, threads, configuration.case_seconds)


def _pipeline(configuration: Configuration) -> Pipeline:
    return StackPipeline(configuration.name, _cache(configuration), configuration.batched)


def _cache(configuration: Configuration) -> Cache:
    return Cache(configuration.reference_folder, configuration.reference_min_seconds, configuration.reference_method)
