"""How many cases a minute does a grid measure, everything but imports and the report included?

On a GPU that of world_size_growth, compiled before, by one process and by those that share it; on the CPU the demo's,
also in one process with all threads, and the share of one seed's processor time inside the attention kernels: the rest
is what measuring costs.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from accuracy.core.case import Case
from accuracy.execute import run
from accuracy.execute.plan import plan
from accuracy.kernel.base import Kernel
from accuracy.measurement import targets
from accuracy.runtime import arithmetic
from accuracy.simulate import program
from accuracy.simulate.program import build_kernel
from bench.schedule import Timed
from tests.measuring import composed, configuration

TARGET = 1500  # cases a minute on an H200; separate torchrun scripts give 3.7
TARGET_SHARE = 0.8  # of the processor time, inside the attention kernels
TARGET_SEED, TARGET_PAIR = (
    7.5,
    7.0,
)  # seconds of the demo: processor time of one seed, wall time of both by two processes


def grid(device: str) -> tuple[str, ...]:
    """Its words on the command line."""
    return f"experiment={'world_size_growth' if device == 'cuda' else 'demo'}", f"device={device}"


def lines(device: str) -> Iterator[str]:
    return on_gpu() if device == "cuda" else on_cpu()


def on_gpu() -> Iterator[str]:
    words = grid("cuda")
    execute((*words, "seed=0"), time.perf_counter)
    count = measured(words)
    for workers, said in (("1", "one process"), ("processors", "processes that share the GPU, with their start")):
        seconds = execute((*words, f"workers={workers}"), time.perf_counter)
        rate = f"{count} measured cases in {seconds:.1f} s, {count / seconds * 60:.0f} a minute"
        yield f"world_size_growth, {said}: {rate}; target >= {TARGET}"


def on_cpu() -> Iterator[str]:
    threads = torch.get_num_threads()
    words = grid("cpu")
    one = execute((*words, "workers=1", f"threads={threads}"), time.perf_counter)
    many, count = execute(words, time.perf_counter), measured(words)
    yield (
        f"demo: {count} measured cases in {many:.1f} s, {count / many * 60:.0f} a minute, by {threads} processes of one"
        f" thread, with their start; by one process of {threads} threads in {one:.1f} s, ratio {many / one:.2f};"
        f" target with two processes <= {TARGET_PAIR} s"
    )
    processor, kernels = processor_time((*words, "seed=0", "workers=1"))
    yield f"  one seed in one thread: {processor:.1f} s of processor time; target <= {TARGET_SEED}"
    share = kernels / processor
    yield f"    {kernels:.1f} s of it inside attention kernels; ratio {share:.2f}; target >= {TARGET_SHARE}"


def measured(words: tuple[str, ...]) -> int:
    """Cases that are not unsupported."""
    return sum(each.unsupported is None for each in plan(configuration(*words), None))


def execute(words: tuple[str, ...], clock: Callable[[], float]) -> float:
    """What the clock says of measuring the grid into a fresh folder."""
    chosen, config = configuration(*words), composed(*words)
    plans = plan(chosen, None)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stderr(io.StringIO()),
        arithmetic.computing_with(chosen.threads, chosen.device),
    ):
        begin = clock()
        run.execute(chosen, config, plans, Path(folder), [])
        return clock() - begin


def processor_time(words: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of user and system, in one thread: of all, and inside the kernels, the single device's among them."""
    kernels = []

    def timed(case: Case) -> Kernel:
        kernels.append(Timed(build_kernel(case), time.process_time))
        return kernels[-1]

    with pytest.MonkeyPatch.context() as patch:
        for module in (program, targets):
            patch.setattr(module, "build_kernel", timed)
        seconds = execute(words, time.process_time)
    return seconds, sum(each.seconds for each in kernels)
