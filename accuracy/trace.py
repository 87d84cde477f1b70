"""Where does a run leave the truth? Every kernel call of every rank, and what has been joined after it, in float64.

A traced case runs once more in the simulated world with a `Rank` that watches. Which tokens a block holds is read off
its rows, so it does not matter how they got there; what the block should have given is then computed here from the
definition, with the problem's own mask. A schedule that joins partials or adds gradients by its own means shows its
partials only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from accuracy import metrics
from accuracy.accumulator import Accumulator
from accuracy.carried import Carried
from accuracy.case import Case
from accuracy.dtype import rounding_band
from accuracy.masks import Block
from accuracy.merge import Running
from accuracy.program import simulate
from accuracy.table import Row
from accuracy.variant.base import Rank
from accuracy.world.base import Tensors
from accuracy.yardsticks import Yardsticks


def steps(case: Case, yardsticks: Yardsticks, shards: Sequence[Tensors]) -> list[Row]:
    """Rows of `steps/`; none where the schedule calls no kernel or is no coroutine of ours."""
    watch = Watch(case, yardsticks)
    simulate(case, shards, rank_type=partial(WatchedRank, watch=watch))
    return watch.rows


@dataclass(frozen=True)
class Met:
    """The tokens and heads that met in a kernel call; key: of each query head, its row of `key_heads`."""

    queries: Tensor
    keys: Tensor
    query_heads: Tensor
    key_heads: Tensor


@dataclass
class Watch:
    """Compares with the truth what the ranks of one case compute, as they compute it."""

    case: Case
    yardsticks: Yardsticks
    rows: list[Row] = field(default_factory=list)
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    pending: dict[tuple[str, int], list[tuple[Tensor, Met, Tensor]]] = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)
    last: Met | None = None

    def __post_init__(self) -> None:
        """Index every row of q and k by its bits."""
        self.places = {name: _places(getattr(self.yardsticks.inputs, name)) for name in "qk"}

    def met(self, q: Tensor, k: Tensor) -> Met | None:
        """Which tokens q (B, S', H', D) and k (B, S'', Hk', D) are; None where rows are no rows of the inputs."""
        queries, keys = _tokens(q, self.places["q"]), _tokens(k, self.places["k"])
        return None if queries is None or keys is None else Met(queries[0], keys[0], queries[1], keys[1])

    def note(self, way: str, rank: int, state: str, met: Met | None, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
        """A row for each tensor: what came, and what the truth is."""
        for name, (x, truth) in pairs.items():
            each = metrics.sums(metrics.error_of(x.unsqueeze(0), truth.unsqueeze(0)), x.unsqueeze(0), truth[None])
            expected = truth.isfinite()
            self.rows.append(
                {
                    "case_id": self.case.id,
                    "way": way,
                    "rank": rank,
                    "step": self.calls[way, rank] - 1,
                    "tensor": name,
                    "state": state,
                    **_extent(met),
                    "error_rel": float(metrics.relative(each)[0]),
                    "error_max": float(each.largest[0]),
                    "band": rounding_band(name, self.case.dtype),
                    "nonfinite": int((expected & ~x.isfinite()).sum()),
                }
            )

    def forward_truth(self, met: Met, seen: Tensor) -> tuple[Tensor, Tensor]:
        """out (B, S', H', D) and lse (B, H', S') of the queries over the keys they see: seen (S', S'')."""
        q, k, v, _ = self._of(met)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * self.case.problem.softmax_scale
        scores = scores.masked_fill(~seen, -torch.inf)
        lse = scores.logsumexp(-1)
        weights = torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None])
        return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse

    def backward_truth(self, met: Met) -> Tensors:
        """dq of the queries by these keys; dk, dv of the keys by these queries."""
        q, k, v, dout = self._of(met)
        truth = self.yardsticks.truth
        lse, delta = (truth[x][:, met.queries][:, :, met.query_heads].transpose(1, 2)[..., None] for x in _STATISTICS)
        scale = self.case.problem.softmax_scale
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
        weights = torch.exp(scores.masked_fill(~self.visible(met), -torch.inf) - lse)
        slope = weights * (torch.einsum("bqhd,bkhd->bhqk", dout, v) - delta)
        dq = torch.einsum("bhqk,bkhd->bqhd", slope, k) * scale
        dk = torch.einsum("bhqk,bqhd->bkhd", slope, q) * scale
        dv = torch.einsum("bhqk,bqhd->bkhd", weights, dout)
        return dq, *(x.unflatten(2, (len(met.key_heads), -1)).sum(3) for x in (dk, dv))

    def visible(self, met: Met) -> Tensor:
        """(S', S''): whether a query sees a key under the problem's mask."""
        if not self.case.problem.causal:
            return torch.ones(len(met.queries), len(met.keys), dtype=torch.bool, device=met.queries.device)
        problem = self.case.problem  # the mask is aligned at the bottom right
        return met.keys <= met.queries[:, None] + (problem.seqlen - problem.queries)

    def _of(self, met: Met) -> Tensors:
        """q, k, v, dout of the block in float64, a key/value head for each query head."""
        q, k, v, dout = (x.double() for x in self.yardsticks.inputs.tensors)
        share = len(met.query_heads) // len(met.key_heads)
        kv = met.key_heads.repeat_interleave(share)
        return (
            q[:, met.queries][:, :, met.query_heads],
            *(x[:, met.keys][:, :, kv] for x in (k, v)),
            dout[:, met.queries][:, :, met.query_heads],
        )


_STATISTICS = ("lse", "delta")


@dataclass(frozen=True)
class WatchedRank(Rank):
    """A rank whose kernel calls, merges and sums are compared with the truth as they happen."""

    watch: Watch = None  # type: ignore[assignment]

    def attend(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `Rank.attend`."""
        out, lse = super().attend(block, q, k, v)
        watch = self.watch
        self._count("forward")
        watch.last = met = watch.met(q[:, block.query], k[:, block.key])
        if met is not None:
            truth = watch.forward_truth(met, watch.visible(met))
            watch.note("forward", self.world.rank, "partial", met, {"out": (out, truth[0]), "lse": (lse, truth[1])})
        return out, lse

    def differentiate(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Rank.differentiate`."""
        gradients = super().differentiate(block, dout, q, k, v, out, lse)
        watch, rank = self.watch, self.world.rank
        self._count("backward")
        met = watch.met(q[:, block.query], k[:, block.key])
        if met is not None:
            truths = watch.backward_truth(met)
            named = dict(zip(("dq", "dk", "dv"), zip(gradients, truths, strict=True), strict=True))
            watch.note("backward", rank, "partial", met, named)
            for name, (x, truth) in named.items():
                watch.pending.setdefault((name, rank), []).append((x, met, truth))
        return gradients

    def running(self, q: Tensor) -> Running | Carried:
        """See `Rank.running`; a state that the kernel carries stays in the kernel."""
        plain = super().running(q)
        return plain if isinstance(plain, Carried) else WatchedRunning.watching(plain, self)

    def accumulator(self, name: str, like: Tensor) -> Accumulator:
        """See `Rank.accumulator`."""
        plain = super().accumulator(name, like)
        return WatchedAccumulator(plain.like, plain.dtype, watch=self.watch, rank=self.world.rank, name=name)

    def _count(self, way: str) -> None:
        key = way, self.world.rank
        self.watch.calls[key] = self.watch.calls.get(key, 0) + 1


@dataclass
class WatchedRunning(Running):
    """A running partial that is compared after each merge."""

    rank: WatchedRank = None  # type: ignore[assignment]
    keys: Tensor | None = None  # (rows, S): which keys have been joined into which row
    queries: Tensor | None = None  # (rows,): their tokens, once known

    @classmethod
    def watching(cls, running: Running, rank: WatchedRank) -> "WatchedRunning":
        """The same empty partial, watched."""
        return cls(**vars(running), rank=rank)

    def add(self, block: Block, block_out: Tensor, block_lse: Tensor) -> None:
        """See `Running.add`."""
        super().add(block, block_out, block_lse)
        watch = self.rank.watch
        met = watch.last
        if met is None:
            return
        if self.keys is None or self.queries is None:
            rows, length = self.lse.shape[1], watch.case.problem.seqlen
            self.keys = torch.zeros(rows, length, dtype=torch.bool, device=self.lse.device)
            self.queries = torch.full((rows,), -1, device=self.lse.device)
        self.queries[block.query] = met.queries
        joined = self.keys[block.query]
        joined[:, met.keys] |= watch.visible(met)
        every = torch.arange(self.keys.shape[1], device=self.lse.device)
        whole = Met(met.queries, every, met.query_heads, met.key_heads)
        truth = watch.forward_truth(whole, joined)
        out = (self.out if self.first is None else self.first)[:, block.query]
        lse = self.lse[:, block.query].squeeze(-1).transpose(1, 2)
        pairs = {"out": (out, truth[0]), "lse": (lse, truth[1])}
        watch.note("forward", self.rank.world.rank, "running", met, pairs)


@dataclass
class WatchedAccumulator(Accumulator):
    """A sum of gradients that is compared after each block. A block that the kernel did not give as it is stands for
    all that it gave since."""

    watch: Watch = None  # type: ignore[assignment]
    rank: int = 0
    name: str = ""
    truth: Tensor | None = None

    def add(self, rows: slice, block: Tensor) -> None:
        """See `Accumulator.add`."""
        super().add(rows, block)
        pending = self.watch.pending.get((self.name, self.rank), [])
        mine = [each for each in pending if each[0] is block] or list(pending)
        pending[:] = [each for each in pending if not any(each is other for other in mine)]
        if not mine:
            return
        truth = self.watch.yardsticks.truth[self.name]
        total = self.watch.totals.setdefault(self.name, torch.zeros_like(truth))
        for _, met, part in mine:
            tokens, heads = (met.queries, met.query_heads) if self.name == "dq" else (met.keys, met.key_heads)
            total[:, tokens[:, None], heads] += part
        tokens = torch.cat([met.queries if self.name == "dq" else met.keys for _, met, _ in mine]).unique()
        here = self.value()[:, rows]
        if len(tokens) == here.shape[1]:
            pairs = {self.name: (here, total[:, tokens])}
            self.watch.note("backward", self.rank, "running", mine[-1][1], pairs)


def _places(x: Tensor) -> dict[bytes, tuple[int, int]]:
    """Of every row of the first batch item, by its bits: (token, head)."""
    host = x[0].detach().cpu().contiguous().view(torch.uint8).numpy()
    return {host[token, head].tobytes(): (token, head) for token in range(len(host)) for head in range(host.shape[1])}


def _tokens(x: Tensor, places: dict[bytes, tuple[int, int]]) -> tuple[Tensor, Tensor] | None:
    """Tokens (S',) and heads (H',) of a block's rows, or None."""
    host = x[0].detach().cpu().contiguous().view(torch.uint8).numpy()
    tokens = [places.get(host[row, 0].tobytes()) for row in range(len(host))]
    heads = [places.get(host[0, head].tobytes()) for head in range(host.shape[1])]
    if None in tokens or None in heads:
        return None
    return tuple(  # type: ignore[return-value]
        torch.tensor([each[side] for each in found], device=x.device)  # type: ignore[index]
        for found, side in ((tokens, 0), (heads, 1))
    )


def _extent(met: Met | None) -> dict[str, int]:
    if met is None:
        return dict.fromkeys(("query_begin", "query_last", "key_begin", "key_last"), -1)
    ends = {"query": met.queries, "key": met.keys}
    return {f"{what}_{side}": int(tokens[place]) for what, tokens in ends.items() for side, place in _ENDS}


_ENDS = (("begin", 0), ("last", -1))
