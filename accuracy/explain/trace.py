"""Where does a run leave the reference? Every kernel call of every rank, in float64.

A traced case runs once more in the simulated world with a `Rank` that watches. Which tokens a kernel is given is read
off their bits, so it does not matter how they got there; the reference of any block is computed from the definition,
with the problem's own mask, whatever the schedule thought. Nothing is said of a direction whose tokens are not known
(rounded on their way), or in which no kernel of ours returns a block's partial result.

Out: rows of `steps/`, how far each partial is from its reference. Which pairs of a query and a key the returned tensors
hold `accuracy.explain.one_hot` reads, of any function.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import rounding_band
from accuracy.core.masks import Block
from accuracy.core.quantisation import unit_roundoff
from accuracy.explain.hypothesis.attention import Attention
from accuracy.measurement import metrics
from accuracy.measurement.distance import Target, distance
from accuracy.measurement.observe import Answer, Observation
from accuracy.measurement.targets import Targets
from accuracy.reference.float64 import seen_keys
from accuracy.results.table import Row
from accuracy.runtime.sharding import token_map
from accuracy.simulate.program import simulate
from accuracy.variant.base import Rank, schedule_of
from accuracy.world.base import Tensors


def answer(observation: Observation, options: None) -> Answer:
    """Return rows of `steps/`; none where the schedule calls no kernel of ours, needs own ranks or is not traced, and
    none of problems with sinks, a given mask or padding."""
    case, problem = observation.case, observation.case.problem
    trace, simulated = _Trace(case, observation.targets), replace(case, world="simulated")
    schedules = [schedule_of(part) for part in (case.variant.forward, case.variant.backward)]
    untraced = any(each.unsupported(simulated) or not each.traced for each in schedules)
    if problem.sinks is None and problem.attn_mask is None and problem.padding is None and not untraced:
        simulate(case, observation.shards, rank_type=partial(_WatchedRank, trace=trace))
    return Answer(tables={"steps": trace.rows})


@dataclass(frozen=True)
class Met:
    """The tokens and heads that met in a kernel call; key: of each query head, its row of `key_heads`."""

    queries: Tensor
    keys: Tensor
    query_heads: Tensor
    key_heads: Tensor


@dataclass
class _Trace:
    """Compares with the reference what the ranks of one case compute, as they compute it. calls: how many kernel calls
    each direction and rank has made."""

    case: Case
    targets: Targets
    rows: list[Row] = field(default_factory=list)
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)

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

    def called(self, way: str, rank: int, block: Block, q: Tensor, k: Tensor, results: Mapping[str, Tensor]) -> None:
        """Add a row for each result of a kernel call, of all queries and the block's keys."""
        step = self.calls[way, rank]
        self.calls[way, rank] += 1
        met = self.met(q[:, block.query], k)
        if met is None:
            return
        right = self.block(met)
        natural, kernel = self.targets.natural(self.case.problem), self.case.kernel
        quantised = 8 * unit_roundoff(kernel.name, kernel.options_text)
        for name, x in results.items():
            x, reference = self.here(x), right.lse if name == "lse" else right.tensor(name)
            sums = distance(x[None], Target(reference[None])).sums
            error = metrics.relative(replace(sums, norm_square=metrics.norms(sums, natural[name])))
            self.rows.append({
                "case_id": self.case.id, "way": way, "rank": rank, "step": step, "source": self.source(met),
                "tensor": name, "query_begin": int(met.queries[0]), "query_last": int(met.queries[-1]),
                "key_begin": int(met.keys[0]), "key_last": int(met.keys[-1]),
                "error_rel": float(error[0]), "error_max": float(sums.largest[0]),
                "band": max(rounding_band(name, self.case.dtype), quantised),
                "nonfinite": int((reference.isfinite() & ~x.isfinite()).sum()),
            })  # fmt: skip

    def block(self, met: Met) -> Attention:
        """The reference of some queries over some keys, as far as they see them. Its backward is given out and lse of
        all keys."""
        q, k, v, dout = (x.double().transpose(1, 2) for x in self.targets.inputs.tensors)
        out, lse = (self.targets.reference[name].transpose(1, 2) for name in ("out", "lse"))
        q, dout, out, lse = (x[:, met.query_heads][:, :, met.queries] for x in (q, dout, out, lse))
        k, v = (x[:, met.key_heads][:, :, met.keys] for x in (k, v))
        share = len(met.query_heads) // len(met.key_heads)
        heads = torch.arange(len(met.query_heads), device=q.device) // share
        problem = self.case.problem
        begin, end = self.seen.to(q.device)[met.queries].T[..., None]
        seen = ((met.keys >= begin) & (met.keys < end)).double()
        scale, cap = problem.softmax_scale, problem.softcap
        return Attention(q, k, v, dout, scale, seen, heads, cap, saved=(out, lse))


@dataclass(frozen=True)
class _WatchedRank(Rank):
    """A rank whose kernel calls are compared with the reference as they happen."""

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
