"""Split-KV decoding: few queries, all keys cut into parts, one kernel call a part, the partials joined by their lse.

What flash-decoding (Dao et al. 2023) does inside one kernel, with every place where it could round as a knob. Forward
only. Part p of n holds keys [p S/n, (p + 1) S/n), rounded down; the queries are the last positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import Whole
from accuracy.core.masks import Block, visible_blocks
from accuracy.variant.base import ForwardOnly, Rank
from accuracy.world.base import Tensors


@dataclass(frozen=True)
class Parts:
    """splits: into how many parts the keys are cut, at most one a key."""

    splits: Whole = 8


def blocks(splits: int, queries: int, keys: int, causal: bool) -> Iterator[Block]:
    """What the queries see of each part, parts in the order of the keys; a query is at key position S - Sq + i."""
    query_offset = keys - queries
    for part in range(splits):
        bounds = part * keys // splits, (part + 1) * keys // splits
        for block in visible_blocks((query_offset, keys), bounds, causal):
            yield block.shifted(query_offset, 0)


class SplitKv(ForwardOnly):
    """One kernel call a part of the keys."""

    def unsupported(self, case: Case) -> str | None:
        """One device only, and no part without a key."""
        splits = int(dict(case.variant.options).get("splits") or 1)
        keys = case.problem.seqlen
        if splits > keys:
            return f"{case.variant.name} cannot cut problem.seqlen={keys} keys into splits={splits} parts"
        return super().unsupported(case)

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """q (B, Sq, H, D), k, v (B, S, Hk, D) -> out (B, Sq, H, D), lse (B, H, Sq)."""
        running = rank.running(q)
        for block in blocks(rank.options.splits, q.shape[1], k.shape[1], rank.causal):
            rank.join(running, block, q, k, v)
        return running.result(rank.dtype, rank.lse_dtype)


SCHEDULE = SplitKv(
    features=("cross_lengths", "softcap", "head_dim_v"),
    forward_places=("partial", "out_accumulator", "lse", "merge"),
    one_device=True,
    options=Parts,
)
