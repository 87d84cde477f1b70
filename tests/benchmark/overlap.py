"""How much of the hardware real ranks reach: our schedules and ring-flash-attention's beside flash-attn alone.

torchrun --nproc-per-node 4 -m tests.benchmark.overlap

Per rank S = 8192, H = 32, Hk = 8, D = 128, bfloat16, causal, flash-attn not deterministic (its default). The target
is flash-attn on one rank's shard, times the world size: the causal work of W shards is W^2 times that of one, shared
by W ranks. ring-flash-attention's benchmark counts so too. Rounds alternate between all candidates; medians.
"""

import importlib
import os
import statistics
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.core.masks import Visibility
from accuracy.core.precision import Precision
from accuracy.kernel.block.calls import Scores
from accuracy.kernel.flash_attn import KERNEL, FlashAttn
from accuracy.runtime import arithmetic
from accuracy.variant import ring, striped, zigzag
from accuracy.variant.base import Rank, Schedule
from accuracy.world.processes import ProcessesWorld, run_rank

LENGTH, HEADS, HEADS_KV, DIM = 8192, 32, 8, 128
ROUNDS, REPEATS = 7, 10
SCALE = DIM**-0.5
SCHEDULES = {"ring": ring, "zigzag": zigzag, "striped": striped}
THEIRS = {"ring": "ring_flash_attn_func", "zigzag": "zigzag_ring_flash_attn_func", "striped": "stripe_flash_attn_func"}
Step = Callable[[], Any]


def inputs() -> list[Tensor]:
    """One rank's q, k, v, dout."""
    generator = torch.Generator("cuda").manual_seed(dist.get_rank())
    return [
        torch.randn(1, LENGTH, heads, DIM, generator=generator, device="cuda", dtype=torch.bfloat16)
        for heads in (HEADS, HEADS_KV, HEADS_KV, HEADS)
    ]


def alone(kernel: FlashAttn, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Step, Step]:
    """flash-attn on one shard: forward, and forward with backward."""

    def forward() -> tuple[Tensor, Tensor]:
        return kernel.forward(q, k, v, scale=SCALE, causal=True, out_dtype=q.dtype)

    def both() -> None:
        out, lse = forward()
        kernel.backward(dout, q, k, v, out, lse, scale=SCALE, causal=True, gradient_dtype=q.dtype)

    return forward, both


def ours(schedule: Schedule, kernel: FlashAttn, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Step, Step]:
    """A schedule of ours over all ranks."""
    world = ProcessesWorld(dist.get_rank(), dist.get_world_size(), dist.group.WORLD)
    rank = Rank(world, kernel, Precision(), q.dtype, Scores(SCALE), Visibility(True), 0, schedule.shardings[0])

    def forward() -> Any:
        return run_rank(lambda world: schedule.forward(rank, q, k, v), world)

    def both() -> None:
        out, lse = forward()
        run_rank(lambda world: schedule.backward(rank, dout, q, k, v, out, lse), world)

    return forward, both


def theirs(function: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> tuple[Step, Step]:
    """A function of ring-flash-attention."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]

    def forward() -> None:
        with torch.no_grad():
            function(*leaves, causal=True)

    def both() -> None:
        torch.autograd.grad(function(*leaves, causal=True), leaves, dout)

    return forward, both


def ring_flash_attn() -> Any:
    """The package, without its adapters, which need an old transformers; None where it is not installed."""
    adapters = types.ModuleType("ring_flash_attn.adapters")
    adapters.substitute_hf_flash_attn = adapters.update_ring_flash_attn_params = None  # type: ignore[attr-defined]
    sys.modules.setdefault("ring_flash_attn.adapters", adapters)
    try:
        return importlib.import_module("ring_flash_attn")
    except ImportError as error:
        say(f"ring_flash_attn is not measured: {error}")
        return None


def seconds(step: Step) -> float:
    """Mean time of a call, of the slowest rank."""
    step()
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPEATS):
        step()
    end.record()
    torch.cuda.synchronize()
    worst = torch.tensor(begin.elapsed_time(end) / 1000 / REPEATS, device="cuda")
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def candidates() -> dict[str, tuple[Step, Step]]:
    kernel = KERNEL(deterministic=False).build("cuda")
    tensors = inputs()
    package = ring_flash_attn()
    steps = {"flash-attn alone": alone(kernel, *tensors)}
    for name, module in SCHEDULES.items():
        steps[f"{name}, ours"] = ours(module.SCHEDULE, kernel, *tensors)
        if package is not None:
            steps[f"{name}, ring-flash-attn"] = theirs(getattr(package, THEIRS[name]), *tensors)
    return steps


def main() -> None:
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    arithmetic.make_exact()
    steps = candidates()
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for name, pair in steps.items():
            for way, step in enumerate(pair):
                times.setdefault((name, way), []).append(seconds(step))
    medians = {key: statistics.median(values) for key, values in times.items()}
    size = dist.get_world_size()
    say(f"{size} x {torch.cuda.get_device_name()}, {LENGTH} tokens a rank: time, and the share of flash-attn's rate")
    for name in steps:
        words = [name.ljust(28)]
        for way, label in enumerate(("forward", "forward + backward")):
            ideal = medians["flash-attn alone", way] * (1 if name == "flash-attn alone" else size)
            median, spread = medians[name, way], max(times[name, way]) / min(times[name, way]) - 1
            words.append(f"{label} {median * 1000:7.2f} ms {ideal / median:6.1%} (spread {spread:.1%})")
        say("   ".join(words))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
