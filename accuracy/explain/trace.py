"""Where does a run leave the reference? Every kernel call of every rank, and what has been joined after it, in float64.

A traced case runs once more in the simulated world with a `Rank` that watches. Which tokens a kernel is given is read
off their bits, so it does not matter how they got there; the reference of any block is computed from the definition,
with the problem's own mask, whatever the schedule thought. A schedule that joins partials or adds gradients by its own
means shows its partials only, a kernel that carries its state what has been joined only. Nothing is said of a direction
whose tokens are not known (rounded on their way) or in which no kernel of ours was called.

Out: rows of `steps/`, how far each partial and each running state is from its reference. Which pairs of a query and a
key the returned tensors hold `accuracy.explain.one_hot` reads, of any function.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import rounding_band
from accuracy.core.masks import Block
from accuracy.core.quantisation import unit_roundoff
from accuracy.explain.hypothesis.attention import Attention
from accuracy.kernel.block.running_state import RunningState
from accuracy.measurement import metrics
from accuracy.measurement.distance import Target, distance
from accuracy.measurement.observe import Answer, Observation, shards_of
from accuracy.measurement.targets import Targets
from accuracy.reference.float64 import seen_keys
from accuracy.results.table import Row
from accuracy.runtime.sharding import token_map
from accuracy.simulate.program import scores_of, simulate
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
    trace, simulated = _Trace(case, targets), replace(case, world="simulated")
    schedules = [schedule_of(part) for part in (case.variant.forward, case.variant.backward)]
    untraced = any(each.unsupported(simulated) or not each.traced for each in schedules)
    if case.problem.sinks is None and case.problem.attn_mask is None and case.problem.padding is None and not untraced:
        simulate(case, shards, rank_type=partial(_WatchedRank, trace=trace))
    return Answer(tables={"steps": trace.rows})


@dataclass(frozen=True)
class Met:
    """The tokens and heads that met in a kernel call; key: of each query head, its row of `key_heads`."""

    queries: Tensor
    keys: Tensor
    query_heads: Tensor
    key_heads: Tensor

    def rows(self, name: str) -> tuple[Tensor, Tensor]:
        """The tokens and heads that a block's gradient `name` is of."""
        return (self.queries, self.query_heads) if name == "dq" else (self.keys, self.key_heads)


class Partial(NamedTuple):
    """A tensor that a kernel call returned, until it is joined, and the reference of it."""

    x: Tensor
    met: Met
    reference: Tensor


@dataclass
class _Trace:
    """Compares with the reference what the ranks of one case compute, as they compute it.

    calls: the number of the last kernel call of each direction and rank; totals: by tensor, the reference of all that
    was added so far; pending: of each tensor and rank, the partials that no merge or sum has taken yet.
    """

    case: Case
    targets: Targets
    rows: list[Row] = field(default_factory=list)
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)
    pending: dict[tuple[str, int], list[Partial]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Index every row of q and k by its bits, and every key by its owner."""
        problem = self.case.problem
        tokens = token_map(self.case.variant.sharding, problem.seqlen, self.case.world_size)
        self.owners = tokens.flatten().argsort() // tokens.shape[1]
        self.seen = seen_keys(problem.queries, problem.seqlen, **problem.seen_by)
        self.index = {name: _index(getattr(self.targets.inputs, name)) for name in "qk"}
        self.device = self.targets.inputs.q.device

    def here(self, x: Tensor) -> Tensor:
        """Move a tensor of a rank to the reference's device."""
        return x.detach().to(self.device)

    def met(self, q: Tensor, k: Tensor) -> Met | None:
        """Find which tokens q (B, S', H', D) and k (B, S'', Hk', D) are; None where rows are no rows of the inputs."""
        queries, keys = (_tokens(self.here(x[0]), self.index[name]) for x, name in ((q, "q"), (k, "k")))
        return None if queries is None or keys is None else Met(queries[0], keys[0], queries[1], keys[1])

    def source(self, met: Met) -> int:
        """The rank that owns the block's keys; -1 where several do."""
        owners = self.owners[met.keys.cpu()].unique()
        return int(owners[0]) if len(owners) == 1 else -1

    def note(self, way: str, rank: int, state: str, met: Met, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Add a row for each tensor. pairs: the schedule's value and the reference's."""
        natural, kernel = self.targets.natural(self.case.problem), self.case.kernel
        quantised = 8 * unit_roundoff(kernel.name, kernel.options_text)
        for name, (x, reference) in pairs.items():
            x = self.here(x)
            sums = distance(x[None], Target(reference[None])).sums
            error = metrics.relative(replace(sums, norm_square=metrics.norms(sums, natural[name])))
            self.rows.append({
                "case_id": self.case.id, "way": way, "rank": rank, "step": self.calls[way, rank],
                "source": self.source(met), "tensor": name, "state": state,
                "query_begin": int(met.queries[0]), "query_last": int(met.queries[-1]),
                "key_begin": int(met.keys[0]), "key_last": int(met.keys[-1]),
                "error_rel": float(error[0]), "error_max": float(sums.largest[0]),
                "band": max(rounding_band(name, self.case.dtype), quantised),
                "nonfinite": int((reference.isfinite() & ~x.isfinite()).sum()),
            })  # fmt: skip

    def block(self, met: Met, seen: Tensor) -> Attention:
        """The reference of some queries over some keys, as far as they see them: (S', S''). Its backward is given out
        and lse of all keys."""
        q, k, v, dout = (x.double().transpose(1, 2) for x in self.targets.inputs.tensors)
        out, lse = (self.targets.reference[name].transpose(1, 2) for name in ("out", "lse"))
        q, dout, out, lse = (x[:, met.query_heads][:, :, met.queries] for x in (q, dout, out, lse))
        k, v = (x[:, met.key_heads][:, :, met.keys] for x in (k, v))
        share = len(met.query_heads) // len(met.key_heads)
        heads = torch.arange(len(met.query_heads), device=q.device) // share
        problem, mask, dropout = self.case.problem, scores_of(self.case).dropout, None
        if mask is not None:
            kept = mask.at(met.queries, met.keys).kept(range(len(q)), problem.heads, q)
            dropout = kept[:, met.query_heads] * mask.scale
        scale, cap = problem.softmax_scale, problem.softcap
        return Attention(q, k, v, dout, scale, seen.double(), heads, cap, dropout, saved=(out, lse))

    def visible(self, met: Met) -> Tensor:
        """(S', S''): whether a query sees a key under the problem's mask."""
        begin, end = self.seen.to(met.queries.device)[met.queries].T[..., None]
        return (met.keys >= begin) & (met.keys < end)

    def called(
        self, way: str, rank: int, block: Block, q: Tensor, k: Tensor, results: Mapping[str, Tensor]
    ) -> Met | None:
        """Note one more kernel call, of all queries and the block's keys; return which rows met in it."""
        self.calls[way, rank] = self.calls.get((way, rank), -1) + 1
        met = self.met(q[:, block.query], k)
        if met is not None and results:
            right = self.block(met, self.visible(met))
            pairs = {name: (x, right.lse if name == "lse" else right.tensor(name)) for name, x in results.items()}
            self.note(way, rank, "partial", met, pairs)
            for name, (x, reference) in pairs.items():
                if name != "lse":  # which comes with out
                    self.pending.setdefault((name, rank), []).append(Partial(x, met, reference))
        return met

    def take(self, name: str, rank: int, block: Tensor) -> list[Partial]:
        """Return the partials that are being joined: the block, or all that are pending where no kernel call returned
        the block as it is."""
        pending = self.pending.pop((name, rank), [])
        joined = [each for each in pending if each.x is block] or pending
        self.pending[name, rank] = [each for each in pending if not any(each is other for other in joined)]
        return joined


@dataclass(frozen=True)
class _WatchedRank(Rank):
    """A rank whose kernel calls, merges and sums are compared with the reference as they happen."""

    trace: _Trace = None  # type: ignore[assignment]

    def attend(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(block, q, k, v)
        self.trace.called("forward", self.world.rank, block, q, k[:, block.key], {"out": out, "lse": lse})
        return out, lse

    def differentiate(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        gradients = super().differentiate(block, dout, q, k, v, out, lse)
        named = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
        self.trace.called("backward", self.world.rank, block, q, k[:, block.key], named)
        return gradients

    def running(self, q: Tensor) -> Running | RunningState:
        plain = super().running(q)
        kind = _WatchedRunningState if isinstance(plain, RunningState) else _WatchedRunning
        return kind(**vars(plain), joined=_Joined(self))

    def accumulator(self, name: str, like: Tensor) -> Accumulator:
        plain = super().accumulator(name, like)
        return _WatchedAccumulator(plain.like, plain.dtype, trace=self.trace, rank=self.world.rank, name=name)


@dataclass
class _Joined:
    """What a running partial of a rank should hold, as blocks are joined into it. keys: (rows, S), which keys have been
    joined into which row."""

    rank: _WatchedRank
    keys: Tensor | None = None

    def note(self, block: Block, met: Met, out: Tensor, lse: Tensor) -> None:
        """After a block: out (B, rows, H, D) and lse (B, H, rows) of all rows."""
        trace, rows = self.rank.trace, out.shape[1]
        if self.keys is None:
            self.keys = torch.zeros(rows, trace.case.problem.seqlen, dtype=torch.bool, device=trace.device)
        joined = self.keys[block.query]
        joined[:, met.keys] |= trace.visible(met)
        every = torch.arange(self.keys.shape[1], device=trace.device)
        right = trace.block(replace(met, keys=every), joined)
        pairs = {"out": (out[:, block.query], right.tensor("out")), "lse": (lse[:, :, block.query], right.lse)}
        trace.note("forward", self.rank.world.rank, "running", met, pairs)


@dataclass
class _WatchedRunning(Running):
    """A running partial that is compared after each merge."""

    joined: _Joined = None  # type: ignore[assignment]

    def add(self, block: Block, block_out: Tensor, block_lse: Tensor) -> None:
        super().add(block, block_out, block_lse)
        rank = self.joined.rank
        taken = rank.trace.take("out", rank.world.rank, block_out)
        if taken:
            self.joined.note(block, taken[-1].met, self.out, self.lse.squeeze(-1).transpose(1, 2))


@dataclass
class _WatchedRunningState(RunningState):
    """A state that the kernel carries, compared after each block; there are no partials."""

    joined: _Joined = None  # type: ignore[assignment]

    def add(self, block: Block, k: Tensor, v: Tensor, scale: float) -> None:
        super().add(block, k, v, scale)
        rank = self.joined.rank
        met = rank.trace.called("forward", rank.world.rank, block, self.q, k, {})
        if met is not None:
            self.joined.note(block, met, *self.result(torch.float32, torch.float64))


@dataclass
class _WatchedAccumulator(Accumulator):
    """A sum of gradients that is compared after each block."""

    trace: _Trace = None  # type: ignore[assignment]
    rank: int = 0
    name: str = ""

    def add(self, rows: slice, block: Tensor) -> None:
        super().add(rows, block)
        trace = self.trace
        taken = trace.take(self.name, self.rank, block)
        if not taken:
            return
        total = trace.totals.setdefault(self.name, torch.zeros_like(trace.targets.reference[self.name]))
        for each in taken:
            tokens, heads = each.met.rows(self.name)
            total[:, tokens[:, None], heads] += each.reference
        tokens = torch.cat([each.met.rows(self.name)[0] for each in taken]).unique()
        here = self.value()[:, rows]
        if len(tokens) == here.shape[1]:
            trace.note("backward", self.rank, "running", taken[-1].met, {self.name: (here, total[:, tokens])})


def _index(x: Tensor) -> dict[bytes, tuple[int, int]]:
    """(token, head) of every row of the first batch item, by its bits; of none where two rows are alike."""
    host = x[0].detach().cpu().contiguous().view(torch.uint8).numpy()
    pairs = [(token, head) for token in range(len(host)) for head in range(host.shape[1])]
    found = {host[token, head].tobytes(): (token, head) for token, head in pairs}
    return found if len(found) == len(pairs) else {}


def _tokens(x: Tensor, index: dict[bytes, tuple[int, int]]) -> tuple[Tensor, Tensor] | None:
    """Tokens (S',) and heads (H',) of a block's rows (S', H', D), or None."""
    host = x.detach().cpu().contiguous().view(torch.uint8).numpy()
    tokens = [index.get(row[0].tobytes(), (-1, -1))[0] for row in host]
    heads = [index.get(row.tobytes(), (-1, -1))[1] for row in host[0]]
    if -1 in tokens or -1 in heads:
        return None
    return torch.tensor(tokens, device=x.device), torch.tensor(heads, device=x.device)
