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
from accuracy.explain.hypothesis.attention import Attention
from accuracy.measurement import metrics
from accuracy.measurement.distance import Target, distance
from accuracy.measurement.targets import Targets
from accuracy.reference.float64 import seen_keys
from accuracy.results.table import Row
from accuracy.runtime.sharding import token_map
from accuracy.simulate.program import scores_of


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
                "case_id": self.case.id, "way": way, "rank": rank, "step": self.calls[way, rank] - 1,
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
