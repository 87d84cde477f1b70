"""A case's schedules as a program of ranks: from inputs to what every rank returns, as stored."""

from types import ModuleType

import torch

from accuracy import parts
from accuracy.case import Case
from accuracy.kernel.base import Kernel
from accuracy.precision import Precision
from accuracy.sharding import cut
from accuracy.variant.base import Rank
from accuracy.world import simulated
from accuracy.world.base import Tensors, World
from accuracy.yardsticks import Named, Yardsticks, build_kernel, in_token_layout


def run_variant(case: Case, yardsticks: Yardsticks, kernel: Kernel | None = None) -> Named:
    """The case's schedules over all ranks: shards (W, B, S/W, ...) of out, lse, dq, dk, dv, delta, as stored.

    kernel: to be used in place of the case's own, by benchmarks and traces.
    """
    layout = case.variant.sharding, case.world_size
    q, k, v, dout = (cut(x, *layout) for x in yardsticks.inputs.tensors)
    forward, backward = (parts.load(part.source) for part in (case.variant.forward, case.variant.backward))
    kernel = kernel or build_kernel(case.kernel, case.device)
    versions = [x._version for x in (q, k, v, dout)]

    async def program(world: World) -> Tensors:
        mine = q[world.rank], k[world.rank], v[world.rank]
        out, lse = await forward.forward(_rank(case, world, kernel, forward, case.forward_precision), *mine)
        rank = _rank(case, world, kernel, backward, case.backward_precision)
        gradients = await backward.backward(rank, dout[world.rank], *mine, out, lse)
        return out, lse, *gradients

    results = simulated.run(program, case.world_size)
    if [x._version for x in (q, k, v, dout)] != versions:
        raise RuntimeError("the variant wrote to its inputs")
    stacked = tuple(torch.stack(same) for same in zip(*results, strict=True))
    return in_token_layout(stacked, dout)


def _rank(case: Case, world: World, kernel: Kernel, schedule: ModuleType, precision: Precision) -> Rank:
    return Rank(
        world=world,
        kernel=kernel,
        precision=precision,
        dtype=getattr(torch, case.dtype),
        scale=case.problem.softmax_scale,
        causal=case.problem.causal,
        sharding=case.variant.sharding,
        options=parts.build_options(schedule, case.variant.options),
    )
