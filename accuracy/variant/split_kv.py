"""Split-KV decoding: few queries, all keys cut into parts, one kernel call a part, the partials joined by their lse.

What flash-decoding (Dao et al. 2023) does inside one kernel, with every place where it could round as a knob. It is one
step of `cached`. Part p of n holds keys [p S/n, (p + 1) S/n), rounded down; the queries are the last positions.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import Whole
from accuracy.variant.base import Rank
from accuracy.variant.cached import Cache, Cached
from accuracy.world.base import Tensors


@dataclass(frozen=True)
class Parts:
    """splits: into how many parts the keys are cut, at most one a key."""

    splits: Whole = 8


class SplitKv(Cached):
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
        step = Cache(chunk=0, splits=rank.options.splits)
        return await super().forward(replace(rank, options=step), q, k, v)


SCHEDULE = SplitKv(
    features=("cross_lengths", "softcap", "head_dim_v"),
    forward_places=("partial", "out_accumulator", "lse", "merge"),
    one_device=True,
    options=Parts,
)
