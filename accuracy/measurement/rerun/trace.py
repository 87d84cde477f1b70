"""Where does a run leave the reference? Every kernel call of every rank, and what has been joined after it, in float64.

A traced case runs once more in the simulated world with a `Rank` that watches; what a block should have given
is computed by `accuracy.measurement.rerun.watch`, whatever the schedule thought. A schedule that joins partials or
adds gradients by its own means shows its partials only, a kernel that carries its state what has been joined only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.masks import Block
from accuracy.kernel.block.running_state import RunningState
from accuracy.measurement.rerun.watch import Met, Watch
from accuracy.measurement.targets import Targets
from accuracy.results.table import Row
from accuracy.simulate.program import simulate
from accuracy.variant.base import Rank, schedule_of
from accuracy.variant.join import Accumulator, Running
from accuracy.world.base import Tensors


def steps(case: Case, targets: Targets, shards: Sequence[Tensors]) -> list[Row]:
    """Rows of `steps/`; none where the schedule calls no kernel of ours, or needs ranks of its own."""
    simulated = replace(case, world="simulated")
    if any(schedule_of(part).unsupported(simulated) for part in (case.variant.forward, case.variant.backward)):
        return []
    watch = Watch(case, targets)
    simulate(case, shards, rank_type=partial(WatchedRank, watch=watch))
    return watch.rows


@dataclass(frozen=True)
class WatchedRank(Rank):
    """A rank whose kernel calls, merges and sums are compared with the reference as they happen."""

    watch: Watch = None  # type: ignore[assignment]

    def attend(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `Rank.attend`."""
        out, lse = super().attend(block, q, k, v)
        watch = self.watch
        self.count("forward")
        watch.last = met = watch.met(q[:, block.query], k[:, block.key])
        if met is not None:
            reference = watch.forward_reference(met, watch.visible(met))
            watch.note(
                "forward", self.world.rank, "partial", met, {"out": (out, reference[0]), "lse": (lse, reference[1])}
            )
        return out, lse

    def differentiate(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Rank.differentiate`."""
        gradients = super().differentiate(block, dout, q, k, v, out, lse)
        watch, rank = self.watch, self.world.rank
        self.count("backward")
        met = watch.met(q[:, block.query], k[:, block.key])
        if met is not None:
            references = watch.backward_reference(met)
            named = dict(zip(("dq", "dk", "dv"), zip(gradients, references, strict=True), strict=True))
            watch.note("backward", rank, "partial", met, named)
            for name, (x, reference) in named.items():
                watch.pending.setdefault((name, rank), []).append((x, met, reference))
        return gradients

    def running(self, q: Tensor) -> Running | RunningState:
        """See `Rank.running`."""
        plain = super().running(q)
        watched = WatchedRunningState if isinstance(plain, RunningState) else WatchedRunning
        return watched(**vars(plain), joined=Joined(self))

    def accumulator(self, name: str, like: Tensor) -> Accumulator:
        """See `Rank.accumulator`."""
        plain = super().accumulator(name, like)
        return WatchedAccumulator(plain.like, plain.dtype, watch=self.watch, rank=self.world.rank, name=name)

    def count(self, way: str) -> None:
        """One more kernel call."""
        key = way, self.world.rank
        self.watch.calls[key] = self.watch.calls.get(key, 0) + 1


@dataclass
class Joined:
    """What a running partial of a rank should hold, as blocks are joined into it.

    queries: (rows,), their tokens, once known; keys: (rows, S), which keys have been joined into which row.
    """

    rank: WatchedRank
    queries: Tensor | None = None
    keys: Tensor | None = None

    def note(self, block: Block, met: Met, out: Tensor, lse: Tensor) -> None:
        """After a block: out (B, rows, H, D) and lse (B, H, rows) of all rows."""
        watch, rows = self.rank.watch, out.shape[1]
        if self.keys is None or self.queries is None:
            self.keys = torch.zeros(rows, watch.case.problem.seqlen, dtype=torch.bool, device=out.device)
            self.queries = torch.full((rows,), -1, device=out.device)
        self.queries[block.query] = met.queries
        joined = self.keys[block.query]
        joined[:, met.keys] |= watch.visible(met)
        every = torch.arange(self.keys.shape[1], device=out.device)
        reference = watch.forward_reference(Met(met.queries, every, met.query_heads, met.key_heads), joined)
        pairs = {"out": (out[:, block.query], reference[0]), "lse": (lse[:, :, block.query], reference[1])}
        watch.note("forward", self.rank.world.rank, "running", met, pairs)


@dataclass
class WatchedRunning(Running):
    """A running partial that is compared after each merge."""

    joined: Joined = None  # type: ignore[assignment]

    def add(self, block: Block, block_out: Tensor, block_lse: Tensor) -> None:
        """See `Running.add`."""
        super().add(block, block_out, block_lse)
        met = self.joined.rank.watch.last
        if met is not None:
            out = self.out if self.first is None else self.first
            self.joined.note(block, met, out, self.lse.squeeze(-1).transpose(1, 2))


@dataclass
class WatchedRunningState(RunningState):
    """A state that the kernel carries, compared after each block; there are no partials."""

    joined: Joined = None  # type: ignore[assignment]

    def add(self, block: Block, k: Tensor, v: Tensor, scale: float) -> None:
        """See `RunningState.add`."""
        super().add(block, k, v, scale)
        rank = self.joined.rank
        rank.count("forward")
        met = rank.watch.met(self.q[:, block.query], k)
        if met is not None:
            self.joined.note(block, met, *self.result(torch.float32, torch.float64))


@dataclass
class WatchedAccumulator(Accumulator):
    """A sum of gradients that is compared after each block. A block that the kernel did not give as it is stands for
    all that it gave since."""

    watch: Watch = None  # type: ignore[assignment]
    rank: int = 0
    name: str = ""
    reference: Tensor | None = None

    def add(self, rows: slice, block: Tensor) -> None:
        """See `Accumulator.add`."""
        super().add(rows, block)
        pending = self.watch.pending.get((self.name, self.rank), [])
        mine = [each for each in pending if each[0] is block] or list(pending)
        pending[:] = [each for each in pending if not any(each is other for other in mine)]
        if not mine:
            return
        reference = self.watch.targets.reference[self.name]
        total = self.watch.totals.setdefault(self.name, torch.zeros_like(reference))
        for _, met, part in mine:
            tokens, heads = (met.queries, met.query_heads) if self.name == "dq" else (met.keys, met.key_heads)
            total[:, tokens[:, None], heads] += part
        tokens = torch.cat([met.queries if self.name == "dq" else met.keys for _, met, _ in mine]).unique()
        here = self.value()[:, rows]
        if len(tokens) == here.shape[1]:
            pairs = {self.name: (here, total[:, tokens])}
            self.watch.note("backward", self.rank, "running", mine[-1][1], pairs)
