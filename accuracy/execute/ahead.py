"""Worker processes that start before there is work for them.

They import torch and open their GPU while the process that hands out cases still imports torch itself, and plans.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from glob import glob
from multiprocessing.context import ForkServerContext
from typing import TYPE_CHECKING, Any

from accuracy.execute import start_method

if TYPE_CHECKING:
    from accuracy.config.read import Configuration

WORKER = "accuracy.execute.worker_process"
ENOUGH_FOR_A_GPU, MOST_ON_A_GPU = 4, 10
"""On an H200 with 16 processors world_size_growth, of 6 references, took 19.9 s by 3, 20.4 by 4, 18.5 by 6, 19.9 by 8,
20.3 by 10; diagnose of ring, of many, 14.2 s by 6, 11.5 by 10, 12.7 by 14."""


class _Context(ForkServerContext):
    """Knows the process that was started in it, though it may have ended."""

    started: Any

    def Process(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # there it is a class
        self.started = super().Process(*args, **options)
        return self.started


class Process:
    """A process on a device (None: the CPU), which starts at once. guessed: nobody has asked torch for the device."""

    def __init__(self, gpu: int | None, guessed: bool = False) -> None:
        context = _Context()
        start_method.preload([WORKER])
        self.executor = ProcessPoolExecutor(1, context, _prepare, (gpu, guessed))
        with start_method.main_is_not_imported(), start_method.kept():
            self.executor.submit(int)
        self.process = context.started


def _prepare(gpu: int | None, guessed: bool) -> None:
    import torch

    from accuracy.execute import worker_process

    if not guessed or torch.cuda.is_available():  # else the process gets no work
        worker_process.prepare(gpu)


_started: list[tuple[int | None, Future[Process]]] = []
_ending: list[ProcessPoolExecutor] | None = None


def expected(configuration: "Configuration") -> list[int | None]:
    """The GPU of each process that a checked configuration will ask for, where that can be said without torch."""
    from accuracy.config.read import PROCESSORS  # not by a process that measures: it takes pydantic

    one = len(glob("/dev/nvidia[0-9]*")) == 1 and "CUDA_VISIBLE_DEVICES" not in os.environ
    measures = configuration.world != "processes" and not configuration.dry_run
    if one and measures and configuration.workers == PROCESSORS and configuration.device != "cpu":
        return [0] * side_by_side(1, configuration)
    return []


def side_by_side(gpus: int, configuration: "Configuration") -> int:
    """How many processes `workers=processors` puts on so many GPUs: one for each reference, within bounds. More would
    compute a reference again, and take turns on the GPU."""
    grids = (configuration, *configuration.also)
    axes = ([each.problems, each.inputs, each.seeds, each.dtypes] for each in grids)
    wanted = max(ENOUGH_FOR_A_GPU * gpus, sum(math.prod(map(len, each)) for each in axes))
    return max(1, min(wanted, MOST_ON_A_GPU * gpus, os.cpu_count() or 1))


@contextmanager
def processes(guess: Sequence[int | None] = ()) -> Iterator[Callable[[Sequence[int | None]], None]]:
    """Starts the processes of a guess; hands out a function that starts what lacks of others. When the body ends, all
    are ended: a GPU's take half a second for it, in which results can be read."""
    global _ending
    _ending = []
    with ThreadPoolExecutor(1) as thread:  # each waits until the server that it is forked from has imported torch
        _started.extend((gpu, thread.submit(Process, gpu, True)) for gpu in guess)

        def ask(gpus: Sequence[int | None]) -> None:
            there = [gpu for gpu, _ in _started]
            for gpu in gpus:
                if gpu in there:
                    there.remove(gpu)
                else:
                    _started.append((gpu, thread.submit(Process, gpu)))

        try:
            yield ask
        finally:
            end_rest()
            ending, _ending = _ending, None
            shut_down(ending)


def take(gpu: int | None) -> Process:
    """One that was started ahead, or a new one."""
    found = next((each for each in _started if each[0] == gpu), None)
    if found is None:
        return Process(gpu)
    _started.remove(found)
    return found[1].result()


def end_rest() -> None:
    """End those that nobody took."""
    started = [future.result() for _, future in _started if not future.cancel() and future.exception() is None]
    _started.clear()
    for each in started:
        each.process.kill()
    shut_down([each.executor for each in started])


def shut_down(executors: list[ProcessPoolExecutor]) -> None:
    """Of processes that were killed: now, or at the end of `processes`."""
    if _ending is not None:
        _ending.extend(executors)
        return
    for each in executors:
        each.shutdown()
