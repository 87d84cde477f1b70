"""What should a block have given, is every visible pair computed once, and all that the kernel gave joined once?

In: the kernel calls, the joins and the results of a traced case. Which tokens a kernel is given is read off their bits,
so it does not matter how they got there; the reference of any block is computed from the definition, with the problem's
own mask. Out: rows of `steps/`: how far each partial and each running state is from it, and a row for each finding,
none where all adds up. Nothing is said of a direction whose tokens are not known (rounded on their way) or in which no
kernel of ours was called.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import rounding_band
from accuracy.core.masks import Block
from accuracy.core.quantisation import unit_roundoff
from accuracy.explain.hypothesis.attention import Attention
from accuracy.measurement import metrics
from accuracy.measurement.distance import Target, distance
from accuracy.measurement.targets import Targets
from accuracy.reference.float64 import seen_keys
from accuracy.results.table import ALL_TENSORS, Row
from accuracy.runtime.sharding import token_map
from accuracy.simulate.program import scores_of
from accuracy.world.base import Results

WAYS = {"out": "forward", "lse": "forward", "dq": "backward", "dk": "backward", "dv": "backward"}


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


def extent(met: Met | None) -> dict[str, int]:
    """The first and the last token of the queries and keys, as columns of `steps/`; -1: not known."""
    spans = {"query": met.queries, "key": met.keys} if met else {"query": [-1], "key": [-1]}
    ends = {"begin": 0, "last": -1}
    return {f"{name}_{side}": int(tokens[end]) for name, tokens in spans.items() for side, end in ends.items()}


class Partial(NamedTuple):
    """A tensor that a kernel call of some step returned, until it is joined, and the reference of it."""

    x: Tensor
    met: Met
    reference: Tensor
    step: int


@dataclass
class Account:
    """Compares with the reference what the ranks of one case compute, as they compute it, and counts what was computed
    and joined.

    calls: the number of the last kernel call of each direction and rank; totals: by tensor, the reference of all that
    was added so far; pairs: (H, Sq, S) of each direction, in how many calls; sums: what the kernel gave for each token,
    by tensor, in float64; states: how to read a (tensor, rank)'s last running state, as it is to be returned.
    """

    case: Case
    targets: Targets
    rows: list[Row] = field(default_factory=list)
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)
    pairs: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    states: defaultdict[tuple[str, int], list[Callable[[], Tensor]]] = field(default_factory=lambda: defaultdict(list))
    unknown: set[str] = field(default_factory=set)
    pending: dict[tuple[str, int], list[Partial]] = field(default_factory=dict)  # until they are joined
    taken: dict[tuple[str, int], list["weakref.ref[Tensor]"]] = field(default_factory=dict)  # joined before
    norm: Tensor | None = None  # of the sum of out, as exp of this

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

    def source(self, met: Met | None) -> int:
        """The rank that owns the block's keys; -1 where several do, or the keys are not known."""
        if met is None:
            return -1
        owners = self.owners[met.keys.cpu()].unique()
        return int(owners[0]) if len(owners) == 1 else -1

    def note(self, way: str, rank: int, state: str, met: Met | None, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Add a row for each tensor. pairs: the schedule's value and the reference's."""
        natural, kernel = self.targets.natural(self.case.problem), self.case.kernel
        quantised = 8 * unit_roundoff(kernel.name, kernel.options_text)
        for name, (x, reference) in pairs.items():
            x = self.here(x)
            sums = distance(x[None], Target(reference[None])).sums
            error = metrics.relative(replace(sums, norm_square=metrics.norms(sums, natural[name])))
            self.rows.append({
                "case_id": self.case.id, "way": way, "rank": rank, "step": self.calls[way, rank],
                "source": self.source(met), "tensor": name, "state": state, **extent(met),
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
        """Note and count one more kernel call, of all queries and the block's keys; return which rows met in it."""
        step = self.calls[way, rank] = self.calls.get((way, rank), -1) + 1
        met = self.met(q[:, block.query], k)
        if met is None:
            self.unknown.add(way)
            return None
        if results:
            right = self.block(met, self.visible(met))
            pairs = {name: (x, right.lse if name == "lse" else right.tensor(name)) for name, x in results.items()}
            self.note(way, rank, "partial", met, pairs)
            for name, (x, reference) in pairs.items():
                if name != "lse":  # which comes with out
                    self.pending.setdefault((name, rank), []).append(Partial(x, met, reference, step))
        self._count(way, rank, step, block, met)
        if way == "backward":
            for name, x in results.items():
                tokens, heads = met.rows(name)
                self._sum(name)[:, tokens[:, None], heads] += self.here(x).double()
        elif results:
            out, lse = (self.here(results[name]).double() for name in ("out", "lse"))
            self._merge(met, out, lse.transpose(1, 2))
        return met

    def take(self, name: str, rank: int, block: Tensor) -> list[Partial]:
        """Return the partials that are being joined: the block, or all that are pending where no kernel call returned
        the block as it is."""
        pending = self.pending.setdefault((name, rank), [])
        taken = self.taken.setdefault((name, rank), [])
        again = any(each() is block for each in taken)
        joined = [] if again else [each for each in pending if each.x is block] or list(pending)
        taken += [weakref.ref(each.x) for each in joined]
        pending[:] = [each for each in pending if not any(each is other for other in joined)]
        if not joined and WAYS[name] not in self.unknown and bool(block.any()):
            step = self.calls.get((WAYS[name], rank), -1)
            self._find("added again", rank, step, None, 1, tensor=name)
        return joined

    def close(self, results: Sequence[Results]) -> None:
        """Compare the results of the run with what was counted and joined."""
        for way in self.pairs.keys() - self.unknown:
            self._missing(way)
        for (name, rank), left in self.pending.items():
            if left and self.states[name, rank]:
                self._find("never added", rank, left[0].step, left[0].met, len(left), tensor=name)
        for rank, tensors in enumerate(results):
            for name, x in zip(ALL_TENSORS, tensors, strict=False):
                if x is not None:
                    self._returned(name, rank, x)

    def _count(self, way: str, rank: int, step: int, block: Block, met: Met) -> None:
        problem = self.case.problem
        empty = torch.zeros(problem.heads, problem.queries, problem.seqlen, dtype=torch.uint8, device=met.keys.device)
        counts = self.pairs.setdefault(way, empty)
        index = met.query_heads[:, None, None], met.queries[:, None], met.keys
        before, shown = counts[index], _shown(block, met)
        counts[index] = before + shown
        self._pairs("repeated", way, rank, step, met, (before > 0).any(0) & shown)
        self._pairs("hidden", way, rank, step, met, shown & ~self.visible(met))

    def _missing(self, way: str) -> None:
        counts, case = self.pairs[way], self.case
        _, queries, keys = counts.shape
        every, head = torch.arange(keys, device=counts.device), torch.arange(1)
        for rank, tokens in enumerate(token_map(case.variant.sharding, queries, case.world_size).to(counts.device)):
            tokens = tokens[tokens < queries]
            met = Met(tokens, every, head, head)
            lacking = self.visible(met) & (counts[:, tokens] == 0).any(0)
            self._pairs("missing", way, rank, -1, met, lacking)

    def _pairs(self, finding: str, way: str, rank: int, step: int, met: Met, chosen: Tensor) -> None:
        if chosen.any():
            some = replace(met, queries=met.queries[chosen.any(1)], keys=met.keys[chosen.any(0)])
            self._find(finding, rank, step, some, int(chosen.sum()), way=way)

    def _sum(self, name: str) -> Tensor:
        return self.sums.setdefault(name, torch.zeros_like(self.targets.reference[name]))

    def _merge(self, met: Met, out: Tensor, lse: Tensor) -> None:
        """Add out and lse, in token layout, to the weighted mean of all that the kernel gave for a row."""
        whole = self._sum("out")
        if self.norm is None:
            self.norm = whole.new_full(whole.shape[:3], -torch.inf)
        index = slice(None), met.queries[:, None], met.query_heads
        joint = torch.logaddexp(self.norm[index], lse)
        base = joint.nan_to_num(neginf=0.0)
        before, new = (torch.exp(x - base)[..., None] for x in (self.norm[index], lse))
        whole[index], self.norm[index] = before * whole[index] + new * out, joint

    def _returned(self, name: str, rank: int, x: Tensor) -> None:
        """A result must equal the last running state to the last bit, and the sum of what the kernel gave to rounding:
        no policy rounds more than one in bfloat16 does, and a block too many or too few is more than that."""
        x, states = self.here(x), self.states[name, rank]
        if len(states) == 1 and (last := self.here(states[0]())).shape == x.shape:
            differs = (last != x) & ~(last.isnan() & x.isnan())
            if differs.any():
                self._find("changed", rank, -1, None, int(differs.sum()), tensor=name)
        if name not in self.sums or WAYS[name] in self.unknown:
            return
        case, band = self.case, rounding_band("out", "bfloat16")
        length = case.problem.length(name)
        tokens = token_map(case.variant.sharding, length, case.world_size)[rank]
        tokens = tokens[tokens < length]  # where ranks hold unequally many, zeros are behind them
        expected = self.sums[name][:, tokens].nan_to_num()
        off = x[:, : len(tokens)].double().nan_to_num() - expected
        size = expected.norm()
        if not off.norm() <= band * size:
            count = int((off.abs() > band * size / expected.numel() ** 0.5).sum())
            error, most = float(off.norm() / size), float(off.abs().max())
            self._find("other sum", rank, -1, None, count, tensor=name, error_rel=error, error_max=most, band=band)

    def _find(
        self, finding: str, rank: int, step: int, met: Met | None, count: int, *, way: str = "", tensor: str = "",
        **numbers: float,
    ) -> None:  # fmt: skip
        self.rows.append({
            "case_id": self.case.id, "way": way or WAYS[tensor], "rank": rank, "step": step,
            "source": self.source(met), "tensor": tensor, "finding": finding, "count": count,
            **extent(met), **numbers,
        })  # fmt: skip


def _shown(block: Block, met: Met) -> Tensor:
    """(S', S''): the pairs that the block's mask shows, aligned at the bottom right."""
    rows, keys = (torch.arange(len(x), device=x.device) for x in (met.queries, met.keys))
    offset = keys - rows[:, None] - (len(keys) - len(rows))
    left, right = block.window or (None, 0 if block.causal else None)
    shown = torch.ones_like(offset, dtype=torch.bool) if left is None else offset >= -left
    return shown if right is None else shown & (offset <= right)


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
