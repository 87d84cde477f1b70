"""What does a schedule cost above its kernel calls, at 16 ranks?

`python -m bench.schedule [VARIANT ...]` runs it alone, and says which kernels and which Python functions take
most of each variant. Targets on a GPU, over single device's time in the same run: 3, for bpt_ring 5. On a CPU: a case
takes at most 1.5 times single device's time plus what the kernel itself takes longer for many small blocks than for one
large one, and what gathering and scattering must copy and add.

case: the best of several, from the start to the GPU's end. attention, others: what the GPU's kernels take, and how many
are launched. gaps: the time of a case in which the GPU does nothing. host: when the last kernel has been launched; in
calls: of it, inside the calls of the attention kernel, Python and launches. A case is as long as the larger of host and
GPU. bits: whether they are those of the ranks run one by one.
"""

import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.kernel.base import Kernel
from accuracy.measurement.pipeline import Pipeline
from accuracy.runtime import arithmetic, device
from accuracy.runtime.sharding import cut
from accuracy.simulate import program
from accuracy.simulate.program import build_kernel, simulate
from accuracy.world import simulated
from accuracy.world.base import Tensors
from bench import device_time
from bench.device_time import DeviceTime
from tests.contract.simulate.batched.both_ways import differing
from tests.measuring import configuration

VARIANTS = ("ring", "zigzag", "striped", "llama3", "llama3_ring", "llama3_zigzag", "bpt_ring", "ulysses")
TARGETS = {"ring": 3, "zigzag": 3, "striped": 3, "llama3_ring": 3, "bpt_ring": 5}
PROBLEM = {"cpu": ("problem.seqlen=1024", "problem.heads=8", "problem.heads_kv=8", "problem.head_dim=64"),
           "cuda": ("problem=issue42", "problem.heads=16")}  # fmt: skip
REPEATS = {"cpu": 2, "cuda": 5}


@dataclass
class Timed:
    """A kernel that adds up the seconds of its calls."""

    kernel: Kernel
    clock: Callable[[], float]
    seconds: float = 0.0
    calls: int = 0

    def forward(self, *tensors: Tensor, **how: object) -> tuple[Tensor, Tensor]:
        return self.timed(self.kernel.forward, *tensors, **how)

    def backward(self, *tensors: Tensor, **how: object) -> tuple[Tensor, Tensor, Tensor]:
        return self.timed(self.kernel.backward, *tensors, **how)

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        fold = getattr(self.kernel, "foldable", None)
        return 1 if fold is None else fold(way, calls, q, k)

    def of_items(self, items: int) -> "Timed":
        known = getattr(self.kernel, "of_items", None)
        self.kernel = self.kernel if known is None else known(items)
        return self

    def timed(self, call, *tensors, **how):
        begin = self.clock()
        result = call(*tensors, **how)
        self.seconds += self.clock() - begin
        self.calls += 1
        return result


@dataclass(frozen=True)
class Profile:
    """Seconds of a case; of its kernel calls and of the copies and sums of gathers and scatters, each waited for (CPU);
    of what the host does, in the calls of the kernel among it, how many these are, what the GPU did (CUDA), and whether
    the bits are those of the ranks one by one."""

    case: float
    kernels: float = 0.0
    collectives: float = 0.0
    host: float = 0.0
    in_calls: float = 0.0
    calls: int = 0
    gpu: DeviceTime | None = None
    alike: bool = True


def lines(here: str, names: Sequence[str] = VARIANTS, detail: bool = False) -> Iterator[str]:
    """The table; detail: what takes most of each variant below it."""
    words = f"variant=[{','.join(('single_device', *names))}]", "world_size=[1,16]", "dtype=bfloat16"
    plans = plan(configuration(*words, *PROBLEM[here], f"device={here}"), None)
    cases = {each.case.variant.name: each.case for each in plans if each.unsupported is None}
    pipeline = Pipeline("benchmark")
    of = on_gpu if here == "cuda" else on_cpu
    found = {name: of(cases[name], shards_of(pipeline, cases[name])) for name in ("single_device", *names)}
    alone, kernel = found["single_device"], cases["single_device"].kernel.name
    yield (
        f"schedules at 16 ranks on {here}, kernel {kernel}, best of {REPEATS[here]};"
        f" single device {alone.case * 1e3:.1f} ms"
    )
    yield from (gpu_table if here == "cuda" else cpu_table)(found, alone)
    if detail and here == "cuda":
        for name in ("single_device", *names):
            yield from most(name, cases[name], shards_of(pipeline, cases[name]), found[name])
    yield ""


def shards_of(pipeline: Pipeline, case: Case) -> list[Tensors]:
    """q, k, v, dout of every rank."""
    tensors = pipeline.targets(case).given.tensors
    return list(zip(*(cut(x, case.variant.sharding, case.world_size) for x in tensors), strict=True))


def cpu_table(found: dict[str, Profile], alone: Profile) -> Iterator[str]:
    yield (
        f"{'variant':15} case ms  x single  kernels ms  collectives ms"
        "  case / (1.5 single device + unavoidable); target <= 1"
    )
    for name, took in found.items():
        bound = 1.5 * alone.case + max(0.0, took.kernels - alone.case) + took.collectives
        yield (
            f"{name:15} {took.case * 1e3:7.1f}  {took.case / alone.case:8.2f}  {took.kernels * 1e3:10.1f}"
            f"  {took.collectives * 1e3:14.1f}  {took.case / bound:.2f}"
        )


def gpu_table(found: dict[str, Profile], alone: Profile) -> Iterator[str]:
    yield (
        f"{'variant':15} case ms  x single  target   attention ms (launches)  others ms (launches)  gaps ms"
        "  host ms  in calls ms  calls  bits"
    )
    for name, took in found.items():
        gpu = took.gpu or DeviceTime()
        (attention, launches), (others, other_launches) = gpu.part(True), gpu.part(False)
        target = f"<= {TARGETS[name]}" if name in TARGETS else ""
        yield (
            f"{name:15} {took.case * 1e3:7.1f}  {took.case / alone.case:8.2f}  {target:6}"
            f"  {attention * 1e3:13.1f} ({launches:8d})  {others * 1e3:9.1f} ({other_launches:8d})"
            f"  {max(0.0, took.case - gpu.busy) * 1e3:7.1f}  {took.host * 1e3:7.1f}  {took.in_calls * 1e3:11.1f}"
            f"  {took.calls:5d}  {'equal' if took.alike else 'DIFFERENT'}"
        )


def on_cpu(case: Case, shards: Sequence[Tensors]) -> Profile:
    """The best of several runs; parts are timed in runs of their own, so that timing does not lengthen the case."""
    seconds = [simulate(case, shards).cost.seconds for _ in range(REPEATS[case.device])]
    kernels, collectives = [], []
    for _ in range(REPEATS[case.device]):
        timed = Timed(build_kernel(case), time.perf_counter)
        copies = Timed(timed.kernel, time.perf_counter)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("_stack", "_gathered", "_sum"):
                patch.setattr(simulated, name, partial(copies.timed, getattr(simulated, name)))
            simulate(case, shards, kernel=timed)
        kernels.append(timed.seconds)
        collectives.append(copies.seconds)
    return Profile(min(seconds), min(kernels), min(collectives))


def on_gpu(case: Case, shards: Sequence[Tensors]) -> Profile:
    """As `on_cpu`; the host is timed without waiting for the GPU, and the GPU by torch's profiler."""
    seconds = [simulate(case, shards).cost.seconds for _ in range(REPEATS[case.device])]
    host, calls = [], []
    for _ in range(REPEATS[case.device]):
        host.append(launched(program.Work(case, build_kernel(case), shards)))
        timed = Timed(build_kernel(case), time.perf_counter)
        launched(program.Work(case, timed, shards))
        calls.append(timed)
    gpu = device_time.profiled(lambda: launched(program.Work(case, build_kernel(case), shards)))
    least = min(calls, key=lambda each: each.seconds)
    return Profile(
        min(seconds),
        host=min(host),
        in_calls=least.seconds,
        calls=least.calls,
        gpu=gpu,
        alike=not differing(case, shards),
    )


def launched(work: program.Work) -> float:
    """Seconds until all of a case's forward and backward has been given to the GPU."""
    device_time.wait()
    begin = time.perf_counter()
    program.backward(work, program.forward(work))
    seconds = time.perf_counter() - begin
    device_time.wait()
    return seconds


def most(name: str, case: Case, shards: Sequence[Tensors], took: Profile) -> Iterator[str]:
    """The kernels and the Python functions that take most of a case; Python's profiler lengthens it."""
    yield f"  {name}: kernels that take most"
    yield from (took.gpu or DeviceTime()).top(8)
    work = program.Work(case, build_kernel(case), shards)
    yield f"  {name}: functions that take most by themselves, under Python's profiler"
    yield from functions(lambda: launched(work), 14)


def functions(work: Callable[[], object], count: int) -> Iterator[str]:
    """Own seconds, calls and name of the Python functions that take most of a piece of work."""
    profiler = cProfile.Profile()
    profiler.runcall(work)
    stats: dict[Any, Any] = vars(pstats.Stats(profiler))["stats"]
    for (file, line, function), (_, calls, own, *_) in sorted(stats.items(), key=lambda each: -each[1][2])[:count]:
        yield f"    {own * 1e3:8.2f} ms {calls:6d} x  {'/'.join(file.split('/')[-2:])}:{line} {function}"


def main(names: Sequence[str]) -> None:
    arithmetic.make_exact()
    here = device.choose("auto")
    print(f"{device.name(here)}, torch {torch.__version__}\n")
    for line in lines(here, names or VARIANTS, detail=True):
        print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
