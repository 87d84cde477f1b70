"""Attention by autograd, with something planted, as the results of a case: what the hypotheses are held to.

Shares no code with `accuracy.explain.hypothesis`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pandas as pd
import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import tensor_dtype
from accuracy.explain.hypothesis import search
from accuracy.measurement import compare
from accuracy.measurement.targets import Targets
from accuracy.results import table
from accuracy.runtime.sharding import cut
from accuracy.verdict.proof import Cause, causes
from tests.measuring import case_of, pipeline

SHAPE = ("problem.batch=1", "problem.seqlen=40", "problem.heads=12", "problem.heads_kv=4", "problem.head_dim=24",
         "problem.softmax_scale=0.2", "kernel=eager", "dtype=float64")  # fmt: skip
NAMES = ("out", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class Plain:
    """Token layout; mask: (S, S), what is counted; heads: of each query head its key/value head."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    mask: Tensor
    heads: Tensor
    scale: float = 0.2

    def but(self, **changes: object) -> "Plain":
        return replace(self, **changes)  # type: ignore[arg-type]

    def results(self) -> dict[str, Tensor]:
        q, k, v = (x.clone().requires_grad_() for x in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k[:, :, self.heads]) * self.scale + self.mask.log()
        out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v[:, :, self.heads])
        gradients = torch.autograd.grad(out, (q, k, v), self.dout)
        lse = scores.logsumexp(-1).transpose(1, 2)
        return dict(zip(NAMES, (out.detach(), lse.detach(), *gradients), strict=True))

    def part(self, queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
        """What some queries and keys add to the gradients, from the whole's lse and delta."""
        whole = self.results()
        k, v = (x[:, :, self.heads] for x in (self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", self.q, k) * self.scale
        here = torch.zeros_like(self.mask)
        here[queries[:, None], keys[None]] = 1
        weights = torch.exp(scores - whole["lse"].transpose(1, 2)[..., None]) * self.mask * here
        delta = (self.dout * whole["out"]).sum(-1).transpose(1, 2)[..., None]
        ds = weights * (torch.einsum("bqhd,bkhd->bhqk", self.dout, v) - delta) * self.scale
        share = self.q.shape[2] // self.k.shape[2]
        dk, dv = torch.einsum("bhqk,bqhd->bkhd", ds, self.q), torch.einsum("bhqk,bqhd->bkhd", weights, self.dout)
        return {"dq": torch.einsum("bhqk,bkhd->bqhd", ds, k), "dk": dk.unflatten(2, (-1, share)).sum(3),
                "dv": dv.unflatten(2, (-1, share)).sum(3)}  # fmt: skip


@cache
def of_case(*words: str) -> tuple[Case, Targets]:
    case = case_of("variant=ring", *SHAPE, *words)
    return case, pipeline().targets(case)


Plant = Callable[[Plain], dict[str, Tensor]]


@cache
def rows(plant: Plant, *words: str) -> tuple[Case, pd.DataFrame]:
    """The case and the rows of `hypotheses/` of what is planted."""
    case, targets = of_case(*(words or ("world_size=4",)))
    q, k, v, dout = (x.double() for x in targets.inputs.tensors)
    heads = torch.arange(q.shape[2]) // (q.shape[2] // k.shape[2])
    named = plant(Plain(q, k, v, dout, torch.ones(q.shape[1], k.shape[1], dtype=q.dtype).tril(), heads))
    layout = case.variant.sharding, case.world_size
    shards = {name: cut(x, *layout).to(getattr(torch, tensor_dtype(name, case.dtype))) for name, x in named.items()}
    if "lse" in shards:
        shards["lse"] = shards["lse"].transpose(-1, -2)
    results = [
        tuple(shards[name][rank] if name in shards else None for name in NAMES) for rank in range(case.world_size)
    ]
    found = search.rows(case, targets, results, compare.compare(case, targets, results))
    return case, pd.DataFrame(found, columns=table.HYPOTHESES_SCHEMA.names)


def explained(plant: Plant, *words: str) -> dict[str, Cause]:
    """By tensor, what the verdict makes of it."""
    case, found = rows(plant, *words)
    return causes(found, pd.DataFrame([case.identity()]))
