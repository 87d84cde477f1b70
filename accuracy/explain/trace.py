"""Where does a run leave the reference? Every kernel call of every rank, and what has been joined after it, in float64.

A traced case runs once more in the simulated world with a `Rank` that watches; what a block should have given
is computed by `accuracy.explain.account`, whatever the schedule thought. A schedule that joins partials or
adds gradients by its own means shows its partials only, a kernel that carries its state what has been joined only.
What was computed, joined and returned is accounted for by `accuracy.explain.account`.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.explain.account import Account, Met
from accuracy.kernel.block.running_state import RunningState
from accuracy.measurement.observe import Answer, Observation, shards_of
from accuracy.simulate.program import simulate
from accuracy.variant.base import Rank, schedule_of
from accuracy.variant.join import Accumulator, Running
from accuracy.world.base import Tensors


def answer(observation: Observation, options: None) -> Answer:
    """Return rows of `steps/`; none where the schedule calls no kernel of ours, needs own ranks or is not traced.

    With padding, these are of the length that ranks share, whose last tokens are drawn like others: a trace tells rows
    apart by their bits.
    """
    case, targets, shards = observation.case, observation.targets, observation.shards
    if case.problem.padding is not None and case.inputs.name != "captured":
        problem = replace(case.problem.padded(case.variant.sharding, case.world_size), padding=None)
        case = replace(case, problem=problem)
        targets = observation.bench.new_targets(case)
        shards = shards_of(case, targets)
    account, simulated = Account(case, targets), replace(case, world="simulated")
    schedules = [schedule_of(part) for part in (case.variant.forward, case.variant.backward)]
    untraced = any(each.unsupported(simulated) or not each.traced for each in schedules)
    if case.problem.sinks is None and case.problem.attn_mask is None and case.problem.padding is None and not untraced:
        account.close(simulate(case, shards, rank_type=partial(_WatchedRank, account=account)).results)
    return Answer(tables={"steps": account.rows})


@dataclass(frozen=True)
class _WatchedRank(Rank):
    """A rank whose kernel calls, merges and sums are compared with the reference as they happen."""

    account: Account = None  # type: ignore[assignment]

    def attend(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(block, q, k, v)
        self.account.called("forward", self.world.rank, block, q, k[:, block.key], {"out": out, "lse": lse})
        return out, lse

    def differentiate(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        gradients = super().differentiate(block, dout, q, k, v, out, lse)
        named = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
        self.account.called("backward", self.world.rank, block, q, k[:, block.key], named)
        return gradients

    def running(self, q: Tensor) -> Running | RunningState:
        plain = super().running(q)
        kind = _WatchedRunningState if isinstance(plain, RunningState) else _WatchedRunning
        watched, rank = kind(**vars(plain), joined=_Joined(self)), self.world.rank
        self.account.states["out", rank].append(lambda: watched.result(self.dtype, self.lse_dtype)[0])
        self.account.states["lse", rank].append(lambda: watched.result(self.dtype, self.lse_dtype)[1])
        return watched

    def accumulator(self, name: str, like: Tensor) -> Accumulator:
        plain, rank = super().accumulator(name, like), self.world.rank
        watched = _WatchedAccumulator(plain.like, plain.dtype, account=self.account, rank=rank, name=name)
        self.account.states[name, rank].append(lambda: watched.value().to(self.dtype))
        return watched


@dataclass
class _Joined:
    """What a running partial of a rank should hold, as blocks are joined into it.

    queries: (rows,), their tokens, once known; keys: (rows, S), which keys have been joined into which row.
    """

    rank: _WatchedRank
    queries: Tensor | None = None
    keys: Tensor | None = None

    def note(self, block: Block, met: Met, out: Tensor, lse: Tensor) -> None:
        """After a block: out (B, rows, H, D) and lse (B, H, rows) of all rows."""
        account, rows = self.rank.account, out.shape[1]
        if self.keys is None or self.queries is None:
            self.keys = torch.zeros(rows, account.case.problem.seqlen, dtype=torch.bool, device=account.device)
            self.queries = torch.full((rows,), -1, device=account.device)
        self.queries[block.query] = met.queries
        joined = self.keys[block.query]
        joined[:, met.keys] |= account.visible(met)
        every = torch.arange(self.keys.shape[1], device=account.device)
        right = account.block(replace(met, keys=every), joined)
        pairs = {"out": (out[:, block.query], right.tensor("out")), "lse": (lse[:, :, block.query], right.lse)}
        account.note("forward", self.rank.world.rank, "running", met, pairs)


@dataclass
class _WatchedRunning(Running):
    """A running partial that is compared after each merge."""

    joined: _Joined = None  # type: ignore[assignment]

    def add(self, block: Block, block_out: Tensor, block_lse: Tensor) -> None:
        super().add(block, block_out, block_lse)
        rank = self.joined.rank
        taken = rank.account.take("out", rank.world.rank, block_out)
        if taken:
            self.joined.note(block, taken[-1].met, self.out, self.lse.squeeze(-1).transpose(1, 2))


@dataclass
class _WatchedRunningState(RunningState):
    """A state that the kernel carries, compared after each block; there are no partials."""

    joined: _Joined = None  # type: ignore[assignment]

    def add(self, block: Block, k: Tensor, v: Tensor, scale: float) -> None:
        super().add(block, k, v, scale)
        rank = self.joined.rank
        met = rank.account.called("forward", rank.world.rank, block, self.q, k, {})
        if met is not None:
            self.joined.note(block, met, *self.result(torch.float32, torch.float64))


@dataclass
class _WatchedAccumulator(Accumulator):
    """A sum of gradients that is compared after each block."""

    account: Account = None  # type: ignore[assignment]
    rank: int = 0
    name: str = ""

    def add(self, rows: slice, block: Tensor) -> None:
        super().add(rows, block)
        account = self.account
        taken = account.take(self.name, self.rank, block)
        if not taken:
            return
        total = account.totals.setdefault(self.name, torch.zeros_like(account.targets.reference[self.name]))
        for each in taken:
            tokens, heads = each.met.rows(self.name)
            total[:, tokens[:, None], heads] += each.reference
        tokens = torch.cat([each.met.rows(self.name)[0] for each in taken]).unique()
        here = self.value()[:, rows]
        if len(tokens) == here.shape[1]:
            account.note("backward", self.rank, "running", taken[-1].met, {self.name: (here, total[:, tokens])})
