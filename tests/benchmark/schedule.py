"""What does a schedule cost above its kernel calls, at 16 ranks?

Target: a case takes at most 1.5 times one-shot's time plus the unavoidable extra work, which is what the kernel
itself takes longer for many small blocks than for one large one (measured in the same run, inside the same calls).
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.case import Case
from accuracy.grid import plan
from accuracy.kernel.base import Kernel
from accuracy.pipeline import Pipeline
from accuracy.program import build_kernel, simulate
from accuracy.reference.cache import Cache
from accuracy.sharding import cut
from tests.measuring import configuration

VARIANTS = ("ring", "zigzag", "striped", "llama3", "llama3_ring", "llama3_zigzag", "bpt_ring", "ulysses")
PROBLEM = {"cpu": ("problem.seqlen=2048", "problem.heads=16", "problem.heads_kv=16", "problem.head_dim=64"),
           "cuda": ("problem=issue42", "problem.heads=16")}  # fmt: skip
REPEATS = 5


@dataclass
class Timed:
    """A kernel that adds up the seconds of its calls."""

    kernel: Kernel
    on_gpu: bool
    seconds: float = 0.0

    def forward(self, *tensors: Tensor, **how: object) -> tuple[Tensor, Tensor]:
        return self._timed(self.kernel.forward, *tensors, **how)

    def backward(self, *tensors: Tensor, **how: object) -> tuple[Tensor, Tensor, Tensor]:
        return self._timed(self.kernel.backward, *tensors, **how)

    def _timed(self, call, *tensors, **how):
        begin = self._now()
        result = call(*tensors, **how)
        self.seconds += self._now() - begin
        return result

    def _now(self) -> float:
        if self.on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()


def lines(device: str) -> Iterator[str]:
    words = f"variant=[{','.join(('one_shot', *VARIANTS))}]", "world_size=[1,16]", "dtype=bfloat16"
    plans = plan(configuration(*words, *PROBLEM[device], f"device={device}"), None)
    cases = {each.case.variant.name: each.case for each in plans if each.decline is None}
    pipeline = Pipeline("benchmark", Cache(None, 0.0))
    one_shot, _ = best(pipeline, cases["one_shot"])
    yield f"schedules at 16 ranks on {device}, best of {REPEATS}; one-shot forward and backward {one_shot * 1e3:.1f} ms"
    target = "; target <= 1" if device == "cpu" else ""
    yield "variant         case ms  in kernels ms  kernel share  case / (1.5 one-shot + extra kernel time)" + target
    for name in VARIANTS:
        case_seconds, kernel_seconds = best(pipeline, cases[name])
        bound = 1.5 * one_shot + max(0.0, kernel_seconds - one_shot)
        yield (
            f"{name:15} {case_seconds * 1e3:7.1f}  {kernel_seconds * 1e3:13.1f}  {kernel_seconds / case_seconds:12.2f}"
            f"  {case_seconds / bound:.2f}"
        )
    yield ""


def best(pipeline: Pipeline, case: Case) -> tuple[float, float]:
    """Seconds of a case's variant, and of the kernel calls inside it, each the best of several runs."""
    on_gpu = case.device == "cuda"
    sticks = pipeline.yardsticks(case)
    sticks.one_shot(case)
    shards = list(zip(*(cut(x, case.variant.sharding, case.world_size) for x in sticks.inputs.tensors), strict=True))
    seconds = [simulate(case, shards).cost.seconds for _ in range(REPEATS)]
    inside = []
    for _ in range(REPEATS):
        timed = Timed(build_kernel(case), on_gpu)
        simulate(case, shards, kernel=timed)
        inside.append(timed.seconds)
    return min(seconds), min(inside)
