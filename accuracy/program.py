"""A case's schedules as the program of one rank, and how the simulated world runs it as all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from accuracy import device, parts
from accuracy.case import Case
from accuracy.kernel.base import Kernel
from accuracy.kernel.block.calls import Scores
from accuracy.precision import Precision
from accuracy.variant.base import Rank
from accuracy.world import simulated
from accuracy.world.base import Program, Results, Tensors, World


@dataclass(frozen=True)
class Ran:
    """out, lse, dq, dk, dv of every rank as stored, in rank order, and what the run took."""

    results: list[Results]
    cost: device.Cost


RunRanks = Callable[[Case, Sequence[Tensors]], Ran]
"""Runs a case on the shards (q, k, v, dout) of every rank."""


MakeRank = Callable[..., Rank]


def build_kernel(case: Case) -> Kernel:
    """The case's kernel, its knobs set."""
    module = parts.load(case.kernel.source)
    kernel: Kernel = module.build(case.device, parts.build_options(module, case.kernel.options))
    return kernel


def rank_program(case: Case, kernel: Kernel, shards: Sequence[Tensors], rank_type: MakeRank = Rank) -> Program:
    """Forward, then backward, of the rank that the world says; shards: (q, k, v, dout), at the rank's place.

    What a forward returns beyond out and lse is handed to its backward. rank_type: what a schedule is given, for traces
    one that watches. Raises RuntimeError where a schedule writes to its inputs.
    """
    forward, backward = (parts.load(part.source) for part in (case.variant.forward, case.variant.backward))

    async def program(world: World) -> Results:
        q, k, v, dout = mine = shards[world.rank]
        versions = [tensor._version for tensor in mine]
        rank = make_rank(rank_type, case, world, kernel, forward, case.forward_precision)
        out, lse, *saved = await forward.forward(rank, q, k, v)
        rank = make_rank(rank_type, case, world, kernel, backward, case.backward_precision)
        gradients = await backward.backward(rank, dout, q, k, v, out, lse, *saved)
        if [tensor._version for tensor in mine] != versions:
            raise RuntimeError("the variant wrote to its inputs")
        return out, lse, *gradients

    return program


def make_rank(
    rank_type: MakeRank, case: Case, world: World, kernel: Kernel, schedule: ModuleType, precision: Precision
) -> Rank:
    """What a schedule is given of a case: one rank's side."""
    return rank_type(
        world=world,
        kernel=kernel,
        precision=precision,
        dtype=getattr(torch, case.dtype),
        scores=Scores(case.problem.softmax_scale, case.problem.softcap),
        visibility=case.problem.visibility,
        ahead=case.problem.ahead,
        sharding=case.variant.sharding,
        options=parts.build_options(schedule, case.variant.options),
    )


def simulate(case: Case, shards: Sequence[Tensors], kernel: Kernel | None = None, rank_type: MakeRank = Rank) -> Ran:
    """All ranks in this process. kernel: in place of the case's own, for benchmarks and traces.

    Raises what `simulated.run` raises.
    """
    program = rank_program(case, kernel or build_kernel(case), shards, rank_type)
    with device.measured(case.device) as cost, device.poisoned(case.reruns.poison):
        results = simulated.run(program, case.world_size)
    return Ran(results, cost)
