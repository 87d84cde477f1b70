"""A case's schedules as the program of one rank, and how the simulated world runs it as all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.core.dtype import accumulation_dtype
from accuracy.core.sharding import lengths_of
from accuracy.kernel.base import Kernel, kernel_of
from accuracy.kernel.block import calls
from accuracy.kernel.block.calls import Scores
from accuracy.runtime import device, given_mask
from accuracy.simulate import batched
from accuracy.variant.base import WROTE, Rank, Schedule, schedule_of
from accuracy.world import simulated
from accuracy.world.base import Program, Results, Tensors, World

BATCHED_DEVICES = ("cuda",)
"""Where simulated ranks are computed together; on a CPU a kernel call costs next to nothing beside its work."""


@dataclass(frozen=True)
class Ran:
    """out, lse, dq, dk, dv of every rank as stored, in rank order, and what the run took. repeats: what runs again
    changed, as each rank tells, where the case asks for repeats and the ranks count by themselves."""

    results: list[Results]
    cost: device.Cost
    repeats: Sequence[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Mode:
    """How ranks are run where something is done that must not change a bit.

    repeat: each rank so many more times, in a world of processes; poison: with unwritten memory full of NaN; unwaited:
    with receive buffers full of NaN until they have been waited for (simulated worlds only); future: on other keys and
    values behind a token, which ranks in processes change by themselves.
    """

    repeat: int = 0
    poison: bool = False
    unwaited: bool = False
    future: bool = False


PLAIN = Mode()
RunRanks = Callable[[Case, Sequence[Tensors], Mode], Ran]
"""Runs a case on the shards (q, k, v, dout) of every rank."""


def build_kernel(case: Case) -> Kernel:
    """The case's kernel, its knobs set."""
    return kernel_of(case.kernel).build(case.device)


def scores_of(case: Case) -> Scores:
    """What becomes of q k^T in a case."""
    problem = case.problem
    mask = given_mask.in_four(problem, getattr(torch, case.dtype), case.device)
    of_bias, dtype = given_mask.of_gradient(problem), getattr(torch, accumulation_dtype(case.dtype))
    dbias = torch.zeros(of_bias, dtype=dtype, device=case.device) if of_bias else None
    return Scores(problem.softmax_scale, problem.softcap, mask, dbias)


@dataclass(frozen=True)
class Work:
    """What the ranks are to do: a case's schedules on a kernel and the shards (q, k, v, dout) of every rank; for a
    forward alone (q, k, v). rank_type: what a schedule is given, for traces one that watches; batched: all simulated
    ranks at once where the schedule is one that allows it, else each as a coroutine."""

    case: Case
    kernel: Kernel
    shards: Sequence[Tensors]
    rank_type: Callable[..., Rank] = Rank
    batched: bool = True
    mode: Mode = PLAIN

    def __post_init__(self) -> None:
        """Where ranks hold unequally many tokens, each is given its own alone."""
        if lengths := lengths_of(self.case.variant.sharding):
            pairs = zip(lengths, self.shards, strict=True)  # in a process of one rank the others' places are empty
            own = [shards and tuple(x[:, :length].contiguous() for x in shards) for length, shards in pairs]
            object.__setattr__(self, "shards", own)

    async def forward(self, world: World) -> Results:
        """Of one rank: out, lse and whatever else the schedule returns for its backward."""
        schedule, rank = self.part("forward", world)
        return self.with_sinks(tuple(await schedule.forward(rank, *self.shards[world.rank][:3])))

    async def backward(self, world: World, forwarded: Results) -> Results:
        """Of one rank, after its forward: dq, dk, dv."""
        schedule, rank = self.part("backward", world)
        q, k, v, dout = self.shards[world.rank]
        gradients = tuple(await schedule.backward(rank, dout, q, k, v, *forwarded))
        if not self.case.problem.sink_logits or schedule.own_sinks:
            return gradients
        (parts,) = await world.all_gather([self.dsink(dout, forwarded)])
        return *gradients, calls.sink_total(parts.unbind())

    def with_sinks(self, forwarded: Results) -> Results:
        """What a schedule returned, out and lse with the case's sinks."""
        out, lse, *others = forwarded
        own = schedule_of(self.case.variant.forward).own_sinks
        sinks = () if own else self.case.problem.sink_logits
        return (*calls.apply_sinks(out, lse, sinks), *others) if sinks else forwarded  # type: ignore[arg-type]

    def dsink(self, dout: Tensor, forwarded: Results) -> Tensor:
        """A rank's share of the gradient of the sinks."""
        out, lse, *_ = forwarded
        return calls.sink_gradient(dout, out, lse, self.case.problem.sink_logits)  # type: ignore[arg-type]

    def part(self, way: str, world: World) -> tuple[Schedule, Rank]:
        """The schedule of `forward` or `backward`, and what it is given."""
        case, part = self.case, getattr(self.case.variant, way)
        padded = case.problem.padded(case.variant.sharding, case.world_size)
        return schedule_of(part), self.rank_type(
            world=world,
            kernel=self.kernel,
            precision=getattr(case, f"{way}_precision"),
            dtype=getattr(torch, case.dtype),
            scores=scores_of(case),
            visibility=padded.visibility,
            query_offset=case.problem.query_offset,
            sharding=case.variant.sharding,
            options=plugins.build_options(plugins.load(part.source), case.variant.options),
            value_dim=case.problem.value_dim,
            sinks=case.problem.sink_logits,
        )


def rank_program(
    case: Case, kernel: Kernel, shards: Sequence[Tensors], agree: Callable[[], None] = lambda: None
) -> Program:
    """Forward, then backward, of the rank that the world says; shards: (q, k, v, dout), at the rank's place. What a
    forward returns beyond out and lse is handed to its backward. agree: called between them; it may raise. Raises
    RuntimeError where a schedule writes to its inputs."""
    work = Work(case, kernel, shards)

    async def program(world: World) -> Results:
        before = _versions(work.shards[world.rank])
        forwarded = await work.forward(world)
        agree()
        gradients = await work.backward(world, forwarded)
        if _versions(work.shards[world.rank]) != before:
            raise RuntimeError(WROTE)
        return _as_large(case, forwarded[:2] + gradients)

    return program


def simulate(
    case: Case, shards: Sequence[Tensors], mode: Mode = PLAIN, kernel: Kernel | None = None,
    rank_type: Callable[..., Rank] = Rank, batched: bool = True,
) -> Ran:  # fmt: skip
    """All ranks in this process; batched, rank_type: see `Work`. The bits do not depend on them. kernel: in place of
    the case's own, for benchmarks and traces. Raises what `simulated.run` raises."""
    work = Work(case, kernel or build_kernel(case), shards, rank_type, batched, mode)
    with device.measured(case.device) as cost, device.poisoned(mode.poison):
        before = [_versions(tensors) for tensors in work.shards]
        forwarded = forward(work)
        gradients = backward(work, forwarded)
        for rank, tensors in enumerate(work.shards):
            if _versions(tensors) != before[rank]:
                raise simulated.RankFailed(f"rank {rank}: RuntimeError: {WROTE}")
    pairs = zip(forwarded, gradients, strict=True)
    return Ran([_as_large(case, outs[:2] + rest) for outs, rest in pairs], cost)


def _as_large(case: Case, results: Results) -> Results:
    """With zeros behind a rank's tokens where another rank holds more: tables want ranks of one size."""
    missing = max(lengths := lengths_of(case.variant.sharding), default=0) - results[0].shape[1]  # type: ignore[union-attr]
    if not lengths or not missing:
        return results
    lse = 1  # (B, H, S'); others (B, S', heads, D)
    return tuple(
        x if x is None or place > 4 else F.pad(x, (0, missing) if place == lse else (0, 0, 0, 0, 0, missing))
        for place, x in enumerate(results)
    )


def _versions(tensors: Tensors) -> list[int]:
    return [tensor._version for tensor in tensors]


def forward(work: Work) -> list[Results]:
    """Out, lse and whatever else the schedule keeps for its backward, of every rank in this process."""
    found = _batched("forward", work, [each[:3] for each in work.shards])
    return _simulated(work, work.forward) if found is None else [work.with_sinks(each) for each in found]


def backward(work: Work, forwarded: Sequence[Results]) -> list[Results]:
    """dq, dk, dv of every rank, after the forward."""
    shards: list[Any] = [(dout, q, k, v, *outs) for (q, k, v, dout), outs in zip(work.shards, forwarded, strict=True)]
    found = _batched("backward", work, shards)
    if found is not None and work.case.problem.sink_logits:
        total = calls.sink_total([work.dsink(each[3], outs) for each, outs in zip(work.shards, forwarded, strict=True)])
        return [(*gradients, total) for gradients in found]
    if found is not None:
        return found
    return _simulated(work, lambda world: work.backward(world, forwarded[world.rank]))


def _simulated(work: Work, program: Program) -> list[Results]:
    return simulated.run(program, work.case.world_size, work.mode.unwaited)


def _batched(way: str, work: Work, shards: Sequence[Tensors]) -> list[Results] | None:
    # not where single ranks are watched, nor in a poisoned world: there the NaN around a rank's inputs shows what a
    # kernel reads beside them, and other ranks' tensors would not
    # nor where ranks hold unequally many tokens
    mode = work.mode
    alone = mode.poison or mode.unwaited or lengths_of(work.case.variant.sharding)
    if not work.batched or work.rank_type is not Rank or alone or work.case.device not in BATCHED_DEVICES:
        return None
    schedule, anywhere = work.part(way, simulated.SimulatedWorld(0, work.case.world_size, simulated.Mail()))
    all_ranks = batched.batched_of(schedule, way)
    return None if all_ranks is None else all_ranks(anywhere, shards)
