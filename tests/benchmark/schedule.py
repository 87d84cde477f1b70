"""What does a schedule cost above its kernel calls, at 16 ranks?

Target: a case takes at most 1.5 times single device's time plus the unavoidable extra work, which is what the kernel
itself takes longer for many small blocks than for one large one, and what gathering and scattering must copy and add
(both measured in the same run, inside the same calls).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.kernel.base import Kernel
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.runtime.sharding import cut
from accuracy.simulate.program import build_kernel, simulate
from accuracy.world import simulated
from tests.measuring import configuration

VARIANTS = ("ring", "zigzag", "striped", "llama3", "llama3_ring", "llama3_zigzag", "bpt_ring", "ulysses")
PROBLEM = {"cpu": ("problem.seqlen=1024", "problem.heads=8", "problem.heads_kv=8", "problem.head_dim=64"),
           "cuda": ("problem=issue42", "problem.heads=16")}  # fmt: skip
REPEATS = {"cpu": 2, "cuda": 5}


@dataclass
class Timed:
    """A kernel that adds up the seconds of its calls."""

    kernel: Kernel
    clock: Callable[[], float]
    seconds: float = 0.0

    def forward(self, *tensors: Tensor, **how: object) -> tuple[Tensor, Tensor]:
        return self.timed(self.kernel.forward, *tensors, **how)

    def backward(self, *tensors: Tensor, **how: object) -> tuple[Tensor, Tensor, Tensor]:
        return self.timed(self.kernel.backward, *tensors, **how)

    def foldable(self, way: str, calls: int, q: Tensor, k: Tensor) -> int:
        fold = getattr(self.kernel, "foldable", None)
        return 1 if fold is None else fold(way, calls, q, k)

    def timed(self, call, *tensors, **how):
        begin = self.clock()
        result = call(*tensors, **how)
        self.seconds += self.clock() - begin
        return result


def gpu_clock() -> float:
    """Seconds, once the GPU has done what it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()


def lines(device: str) -> Iterator[str]:
    words = f"variant=[{','.join(('single_device', *VARIANTS))}]", "world_size=[1,16]", "dtype=bfloat16"
    plans = plan(configuration(*words, *PROBLEM[device], f"device={device}"), None)
    cases = {each.case.variant.name: each.case for each in plans if each.unsupported is None}
    pipeline = Pipeline("benchmark", Cache(None, 0.0))
    single_device = profile(pipeline, cases["single_device"])
    target = "; target <= 1" if device == "cpu" else ""
    alone = f"single device {single_device.case * 1e3:.1f} ms"
    yield f"schedules at 16 ranks on {device}, best of {REPEATS[device]}; {alone}"
    yield f"{'variant':15} case ms  kernels ms  collectives ms  case / (1.5 single device + unavoidable){target}"
    for name in VARIANTS:
        took = profile(pipeline, cases[name])
        bound = 1.5 * single_device.case + max(0.0, took.kernels - single_device.case) + took.collectives
        yield (
            f"{name:15} {took.case * 1e3:7.1f}  {took.kernels * 1e3:10.1f}  {took.collectives * 1e3:14.1f}"
            f"  {took.case / bound:.2f}"
        )
    yield ""


@dataclass(frozen=True)
class Profile:
    """Seconds of a case, and of what in it is kernel calls and the copies and sums of gathers and scatters."""

    case: float
    kernels: float
    collectives: float


def profile(pipeline: Pipeline, case: Case) -> Profile:
    """The best of several runs; parts are timed in runs of their own, so that timing does not lengthen the case."""
    clock = gpu_clock if case.device == "cuda" else time.perf_counter
    sticks = pipeline.targets(case)
    sticks.single_device(case)
    shards = list(zip(*(cut(x, case.variant.sharding, case.world_size) for x in sticks.inputs.tensors), strict=True))
    seconds = [simulate(case, shards).cost.seconds for _ in range(REPEATS[case.device])]
    kernels, collectives = [], []
    for _ in range(REPEATS[case.device]):
        timed = Timed(build_kernel(case), clock)
        copies = Timed(timed.kernel, clock)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("_stack", "_gathered", "_sum"):
                patch.setattr(simulated, name, partial(copies.timed, getattr(simulated, name)))
            simulate(case, shards, kernel=timed)
        kernels.append(timed.seconds)
        collectives.append(copies.seconds)
    return Profile(min(seconds), min(kernels), min(collectives))
