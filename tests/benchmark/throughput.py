"""How many cases a minute does a grid measure, everything but imports and the report included?

On a GPU the grid of world_size_growth with one seed; on the CPU the demo's with one seed, and how much of its processor
time is spent inside the attention kernels: the rest is what measuring costs.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from accuracy import program, run, yardsticks
from accuracy.case import Case
from accuracy.grid import plan
from accuracy.kernel.base import Kernel
from accuracy.program import build_kernel
from tests.benchmark.schedule import Timed
from tests.composing import composed
from tests.measuring import configuration

TARGET = 600  # cases a minute on an H200; 150 was the first step; separate torchrun scripts give 3.7
TARGET_SHARE = 0.8  # of the processor time, inside the attention kernels


def grid(device: str) -> tuple[str, ...]:
    """Its words on the command line."""
    experiment = "world_size_growth" if device == "cuda" else "demo"
    return f"experiment={experiment}", "seed=0", f"device={device}", "workers=1"


def lines(device: str) -> Iterator[str]:
    words = grid(device)
    chosen = configuration(*words)
    measured = sum(each.decline is None for each in plan(chosen, None))
    seconds = execute(words, time.perf_counter)
    target = f"; target >= {TARGET}" if device == "cuda" else ""
    rate = measured / seconds * 60
    yield f"{chosen.name}, one seed: {measured} measured cases in {seconds:.1f} s, {rate:.0f} a minute{target}"
    if device == "cpu":
        processor, kernels = processor_time(words)
        yield (
            f"  in one thread: {processor:.1f} s of processor time, {kernels:.1f} s of it inside attention kernels;"
            f" ratio {kernels / processor:.2f}; target >= {TARGET_SHARE}"
        )


def execute(words: tuple[str, ...], clock: Callable[[], float]) -> float:
    """What the clock says of measuring the grid into a fresh folder."""
    chosen, config = configuration(*words), composed(*words)
    plans = plan(chosen, None)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        begin = clock()
        run.execute(chosen, config, plans, Path(folder), [])
        return clock() - begin


def processor_time(words: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of user and system, in one thread: of all, and inside the kernels, the one-shot's among them."""
    kernels = []

    def timed(case: Case) -> Kernel:
        kernels.append(Timed(build_kernel(case), time.process_time))
        return kernels[-1]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for module in (program, yardsticks):
                patch.setattr(module, "build_kernel", timed)
            seconds = execute(words, time.process_time)
    finally:
        torch.set_num_threads(threads)
    return seconds, sum(each.seconds for each in kernels)
