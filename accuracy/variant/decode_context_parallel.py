"""Decode context parallelism: each rank has some keys, all queries go to all ranks, partials are merged by their lse.

As vLLM's `cp_lse_ag_out_rs`: lse is gathered; each rank multiplies its partial by
exp(lse - joint lse) and rounds it; a reduce-scatter adds the partials in their dtype. Kernels give lse to the base e or
2. Forward only. Keys are dealt out token by token (striped), or in runs (contiguous).
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from accuracy.core.dtype import Dtype, OneOf
from accuracy.core.masks import Block
from accuracy.kernel.base import dtype_of
from accuracy.variant import striped
from accuracy.variant.base import ForwardOnly, Rank
from accuracy.world.base import Tensors


@dataclass(frozen=True)
class Merge:
    """lse_base: of the kernel's lse and of the merge; reduce_dtype: in which partials are added: `input`, `accumulate`
    or a dtype."""

    lse_base: Annotated[str, OneOf("e", "two")] = "e"
    reduce_dtype: Dtype = "input"


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """What the queries of rank `source` see of this rank's keys, in local rows; see `Schedule`s of rings."""
    of = striped.blocks if rank.sharding == "striped" else Rank.blocks_between
    return of(rank.seated(source), rank.world.rank, length)


class DecodeContextParallel(ForwardOnly):
    """Gathers queries and lse, reduce-scatters weighted partials."""

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """Shards of q (B, S/W, H, D), k, v (B, S/W, Hk, D) -> out (B, S/W, H, D), lse (B, H, S/W)."""
        (queries,) = await rank.world.all_gather([q.contiguous()])
        partials = []  # of this rank's keys, the queries of each rank; 0 and -inf where they see none
        for source, each in enumerate(queries.unbind()):
            running = rank.running(each)
            for block in blocks(rank, source, k.shape[1]):
                rank.join(running, block, each, k, v)
            partials.append(running.result(rank.place("partial"), rank.lse_dtype))
        outs, lses = (torch.stack(each) for each in zip(*partials, strict=True))
        if rank.options.lse_base == "two":
            lses = lses * math.log2(math.e)
        (every,) = await rank.world.all_gather([lses])  # (W of keys, W of queries, B, H, S/W)
        joint, weight = _merged(every, lses, rank.options.lse_base)
        weighted = outs.to(weight.dtype) * weight.transpose(-1, -2).unsqueeze(-1)
        (out,) = await rank.world.reduce_scatter([weighted.to(dtype_of(rank.options.reduce_dtype, q))])
        lse = joint[rank.world.rank]
        return out.to(rank.dtype), (lse * math.log(2) if rank.options.lse_base == "two" else lse).to(rank.lse_dtype)


def _merged(every: Tensor, own: Tensor, base: str) -> tuple[Tensor, Tensor]:
    """The joint lse of all ranks' keys, and the weight of a rank's own partial."""
    exponential, logarithm = (torch.exp2, torch.log2) if base == "two" else (torch.exp, torch.log)
    top = every.amax(0)
    joint = top + logarithm(exponential(every - top).sum(0))
    return joint, exponential(own - joint)


SCHEDULE = DecodeContextParallel(
    shardings=("striped", "contiguous"),
    features=("window", "documents", "softcap", "head_dim_v"),
    forward_places=("partial",),
    traced=False,
    options=Merge,
)
