"""Is every visible pair computed once, everything that the kernel gave joined once, and the outcome what is returned?

In: the kernel calls, the joins and the results of a traced case. Out: a row of `steps/` for each finding, none where
all adds up. Pairs are those of the mask that the kernel was asked for. Nothing is said of a direction whose tokens are
not known (rounded on their way) or in which no kernel of ours was called.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from accuracy.core.dtype import rounding_band
from accuracy.core.masks import Block
from accuracy.explain.watch import Met, Watch, extent
from accuracy.results.table import ALL_TENSORS
from accuracy.runtime.sharding import token_map
from accuracy.world.base import Results

WAYS = {"out": "forward", "lse": "forward", "dq": "backward", "dk": "backward", "dv": "backward"}


class Partial(NamedTuple):
    """A tensor that a kernel call of some step returned, until it is joined, and the reference of it."""

    x: Tensor
    met: Met
    reference: Tensor
    step: int


@dataclass
class Account:
    """What the kernel calls of one case computed, and what was joined. pairs: (H, Sq, S) of each direction, in how many
    calls; sums: what the kernel gave for each token, by tensor, in float64; states: how to read the last running state
    of a (tensor, rank), as it is to be returned."""

    watch: Watch
    pairs: dict[str, Tensor] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    states: defaultdict[tuple[str, int], list[Callable[[], Tensor]]] = field(default_factory=lambda: defaultdict(list))
    unknown: set[str] = field(default_factory=set)
    pending: dict[tuple[str, int], list[Partial]] = field(default_factory=dict)  # until they are joined
    taken: dict[tuple[str, int], list["weakref.ref[Tensor]"]] = field(default_factory=dict)  # joined before
    norm: Tensor | None = None  # of the sum of out, as exp of this

    def called(
        self, way: str, rank: int, block: Block, met: Met | None, results: Mapping[str, tuple[Tensor, Tensor]]
    ) -> None:
        """Count a kernel call. results: by tensor, what it returned and the reference of that."""
        if met is None:
            self.unknown.add(way)
            return
        self._count(way, rank, block, met)
        step = self.watch.calls[way, rank] - 1
        for name, (x, reference) in results.items():
            if name != "lse":  # which comes with out
                self.pending.setdefault((name, rank), []).append(Partial(x, met, reference, step))
        if way == "backward":
            for name, (x, _) in results.items():
                tokens, heads = met.rows(name)
                self._sum(name)[:, tokens[:, None], heads] += self.watch.here(x).double()
        elif results:
            out, lse = (self.watch.here(results[name][0]).double() for name in ("out", "lse"))
            self._merge(met, out, lse.transpose(1, 2))

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
            step = self.watch.calls.get((WAYS[name], rank), 0) - 1
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

    def _count(self, way: str, rank: int, block: Block, met: Met) -> None:
        problem, step = self.watch.case.problem, self.watch.calls[way, rank] - 1
        empty = torch.zeros(problem.heads, problem.queries, problem.seqlen, dtype=torch.uint8, device=met.keys.device)
        counts = self.pairs.setdefault(way, empty)
        index = met.query_heads[:, None, None], met.queries[:, None], met.keys
        before, shown = counts[index], _shown(block, met)
        counts[index] = before + shown
        self._pairs("repeated", way, rank, step, met, (before > 0).any(0) & shown)
        self._pairs("hidden", way, rank, step, met, shown & ~self.watch.visible(met))

    def _missing(self, way: str) -> None:
        counts, case = self.pairs[way], self.watch.case
        _, queries, keys = counts.shape
        every, head = torch.arange(keys, device=counts.device), torch.arange(1)
        for rank, tokens in enumerate(token_map(case.variant.sharding, queries, case.world_size).to(counts.device)):
            tokens = tokens[tokens < queries]
            met = Met(tokens, every, head, head)
            lacking = self.watch.visible(met) & (counts[:, tokens] == 0).any(0)
            self._pairs("missing", way, rank, -1, met, lacking)

    def _pairs(self, finding: str, way: str, rank: int, step: int, met: Met, chosen: Tensor) -> None:
        if chosen.any():
            some = replace(met, queries=met.queries[chosen.any(1)], keys=met.keys[chosen.any(0)])
            self._find(finding, rank, step, some, int(chosen.sum()), way=way)

    def _sum(self, name: str) -> Tensor:
        return self.sums.setdefault(name, torch.zeros_like(self.watch.targets.reference[name]))

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
        x, states = self.watch.here(x), self.states[name, rank]
        if len(states) == 1 and (last := self.watch.here(states[0]())).shape == x.shape:
            differs = (last != x) & ~(last.isnan() & x.isnan())
            if differs.any():
                self._find("changed", rank, -1, None, int(differs.sum()), tensor=name)
        if name not in self.sums or WAYS[name] in self.unknown:
            return
        case, band = self.watch.case, rounding_band("out", "bfloat16")
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
        self.watch.rows.append({
            "case_id": self.watch.case.id, "way": way or WAYS[tensor], "rank": rank, "step": step,
            "source": self.watch.source(met), "tensor": tensor, "finding": finding, "count": count,
            **extent(met), **numbers,
        })  # fmt: skip


def _shown(block: Block, met: Met) -> Tensor:
    """(S', S''): the pairs that the block's mask shows, aligned at the bottom right."""
    rows, keys = (torch.arange(len(x), device=x.device) for x in (met.queries, met.keys))
    offset = keys - rows[:, None] - (len(keys) - len(rows))
    left, right = block.window or (None, 0 if block.causal else None)
    shown = torch.ones_like(offset, dtype=torch.bool) if left is None else offset >= -left
    return shown if right is None else shown & (offset <= right)
