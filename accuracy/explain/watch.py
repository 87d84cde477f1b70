"""What should a block have given? The reference of any block of a case, from the definition, with the problem's own
mask.

In: rows of q and k as a kernel is given them. Which tokens they are is read off their bits, so it does not matter how
they got there. Out: rows of `steps/`, for what `accuracy.explain.trace` hands over.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import rounding_band
from accuracy.core.quantisation import unit_roundoff
from accuracy.measurement import metrics
from accuracy.measurement.distance import Target, distance
from accuracy.measurement.targets import Targets
from accuracy.reference.float64 import seen_keys
from accuracy.results.table import Row
from accuracy.runtime.sharding import token_map
from accuracy.simulate.program import scores_of
from accuracy.world.base import Tensors


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

    @staticmethod
    def extent(met: "Met | None") -> dict[str, int]:
        """The first and the last token, as columns of `steps/`; -1: not known."""
        if met is None:
            return dict.fromkeys(("query_begin", "query_last", "key_begin", "key_last"), -1)
        ends = {"query": met.queries, "key": met.keys}
        return {f"{what}_{side}": int(tokens[place]) for what, tokens in ends.items() for side, place in _ENDS}


_ENDS = (("begin", 0), ("last", -1))


@dataclass
class Watch:
    """Compares with the reference what the ranks of one case compute, as they compute it."""

    case: Case
    targets: Targets
    rows: list[Row] = field(default_factory=list)
    calls: dict[tuple[str, int], int] = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Index every row of q and k by its bits, and every key by its owner."""
        tokens = token_map(self.case.variant.sharding, self.case.problem.seqlen, self.case.world_size)
        self.owners = torch.empty(tokens.numel(), dtype=torch.int64)
        self.owners[tokens] = torch.arange(len(tokens))[:, None].expand_as(tokens)
        problem = self.case.problem
        self.seen = seen_keys(problem.queries, problem.seqlen, **problem.seen_by)
        self.places = {name: _places(getattr(self.targets.inputs, name)) for name in "qk"}
        self.device = self.targets.inputs.q.device

    def here(self, x: Tensor) -> Tensor:
        """A tensor of a rank where the reference is."""
        return x.detach().to(self.device)

    def met(self, q: Tensor, k: Tensor) -> Met | None:
        """Which tokens q (B, S', H', D) and k (B, S'', Hk', D) are; None where rows are no rows of the inputs."""
        queries, keys = (_tokens(self.here(x[0]), self.places[name]) for x, name in ((q, "q"), (k, "k")))
        return None if queries is None or keys is None else Met(queries[0], keys[0], queries[1], keys[1])

    def source(self, met: Met | None) -> int:
        """The rank that owns the block's keys; -1 where several do, or the keys are not known."""
        if met is None:
            return -1
        owners = self.owners[met.keys.cpu()].unique()
        return int(owners[0]) if len(owners) == 1 else -1

    def note(self, way: str, rank: int, state: str, met: Met | None, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
        """A row for each tensor: the schedule's value, and the reference's."""
        natural, kernel = self.targets.natural(self.case.problem), self.case.kernel
        for name, (given, reference) in pairs.items():
            x = self.here(given)
            each = distance(x[None], Target(reference[None])).sums
            expected = reference.isfinite()
            self.rows.append(
                {
                    "case_id": self.case.id,
                    "way": way,
                    "rank": rank,
                    "step": self.calls[way, rank] - 1,
                    "source": self.source(met),
                    "tensor": name,
                    "state": state,
                    **Met.extent(met),
                    "error_rel": float(
                        metrics.relative(replace(each, norm_square=metrics.norms(each, natural[name])))[0]
                    ),
                    "error_max": float(each.largest[0]),
                    "band": max(
                        rounding_band(name, self.case.dtype), 8 * unit_roundoff(kernel.name, kernel.options_text)
                    ),
                    "nonfinite": int((expected & ~x.isfinite()).sum()),
                }
            )

    def forward_reference(self, met: Met, seen: Tensor) -> tuple[Tensor, Tensor]:
        """out (B, S', H', D) and lse (B, H', S') of the queries over the keys they see: seen (S', S'')."""
        q, k, v, _ = self._of(met)
        scores = self._scores(q, k)[0].masked_fill(~seen, -torch.inf)
        lse = scores.logsumexp(-1)
        weights = torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None])
        return torch.einsum("bhqk,bkhd->bqhd", self._dropped(met, weights), v), lse

    def backward_reference(self, met: Met) -> Tensors:
        """dq of the queries by these keys; dk, dv of the keys by these queries."""
        q, k, v, dout = self._of(met)
        reference = self.targets.reference
        rows = {name: reference[name][:, met.queries][:, :, met.query_heads] for name in ("lse", "delta")}
        lse, delta = (x.transpose(1, 2)[..., None] for x in rows.values())
        scale = self.case.problem.softmax_scale
        scores, slope_of_cap = self._scores(q, k)
        weights = torch.exp(scores.masked_fill(~self.visible(met), -torch.inf) - lse)
        of_weights = self._dropped(met, torch.einsum("bqhd,bkhd->bhqk", dout, v))
        slope = weights * (of_weights - delta) * slope_of_cap
        dq = torch.einsum("bhqk,bkhd->bqhd", slope, k) * scale
        dk = torch.einsum("bhqk,bqhd->bkhd", slope, q) * scale
        dv = torch.einsum("bhqk,bqhd->bkhd", self._dropped(met, weights), dout)
        return dq, *(x.unflatten(2, (len(met.key_heads), -1)).sum(3) for x in (dk, dv))

    def _dropped(self, met: Met, x: Tensor) -> Tensor:
        """x (B, H', S', S''), of pairs, times what dropout multiplies their weights by."""
        mask = scores_of(self.case).dropout
        if mask is None:
            return x
        kept = mask.at(met.queries, met.keys).kept(range(len(x)), self.case.problem.heads, x)
        return x * kept[:, met.query_heads] * mask.scale

    def _scores(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (B, H', S', S''), capped where the problem is, and their slope by what is capped."""
        problem = self.case.problem
        products = torch.einsum("bqhd,bkhd->bhqk", q, k) * problem.softmax_scale
        if problem.softcap is None:
            return products, torch.ones_like(products)
        ratio = torch.tanh(products / problem.softcap)
        return ratio * problem.softcap, 1 - ratio.square()

    def visible(self, met: Met) -> Tensor:
        """(S', S''): whether a query sees a key under the problem's mask."""
        begin, end = self.seen.to(met.queries.device)[met.queries].T[..., None]
        return (met.keys >= begin) & (met.keys < end)

    def _of(self, met: Met) -> Tensors:
        """q, k, v, dout of the block in float64, a key/value head for each query head."""
        q, k, v, dout = (x.double() for x in self.targets.inputs.tensors)
        share = len(met.query_heads) // len(met.key_heads)
        kv = met.key_heads.repeat_interleave(share)
        return (
            q[:, met.queries][:, :, met.query_heads],
            *(x[:, met.keys][:, :, kv] for x in (k, v)),
            dout[:, met.queries][:, :, met.query_heads],
        )


def _places(x: Tensor) -> dict[bytes, tuple[int, int]]:
    """Of every row of the first batch item, by its bits: (token, head); of none where two rows are alike."""
    host = x[0].detach().cpu().contiguous().view(torch.uint8).numpy()
    pairs = [(token, head) for token in range(len(host)) for head in range(host.shape[1])]
    found = {host[token, head].tobytes(): (token, head) for token, head in pairs}
    return found if len(found) == len(pairs) else {}


def _tokens(x: Tensor, places: dict[bytes, tuple[int, int]]) -> tuple[Tensor, Tensor] | None:
    """Tokens (S',) and heads (H',) of a block's rows (S', H', D), or None."""
    host = x.detach().cpu().contiguous().view(torch.uint8).numpy()
    tokens = [places.get(host[row, 0].tobytes()) for row in range(len(host))]
    heads = [places.get(host[0, head].tobytes()) for head in range(host.shape[1])]
    if None in tokens or None in heads:
        return None
    return tuple(  # type: ignore[return-value]
        torch.tensor([each[side] for each in found], device=x.device)  # type: ignore[index]
        for found, side in ((tokens, 0), (heads, 1))
    )
