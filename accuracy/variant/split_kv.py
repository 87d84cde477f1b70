"""Split-KV decoding: few queries, all keys cut into parts, one kernel call a part, the partials joined by their lse.

What flash-decoding (Dao et al. 2023) does inside one kernel, with every place where it could round as a knob; asked for
with as many key/value heads as query heads too in flash-attention #1029. Forward only. Keys are in their order, so part
p of n holds keys [p S/n, (p + 1) S/n), rounded down; the queries are the last positions and see all keys up to theirs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.masks import Block, visible_blocks
from accuracy.core.precision import Precision
from accuracy.variant.base import Rank
from accuracy.variant.single_device import one_device_only
from accuracy.world.base import Results, Tensors

SHARDINGS = ("contiguous",)
PRECISION = Precision()
FORWARD_PLACES = ("partial", "out_accumulator", "lse", "merge")
BACKWARD_PLACES = ()
FEATURES = ("cross_lengths", "softcap")
GRADIENTS = False


@dataclass(frozen=True)
class Options:
    """splits: into how many parts the keys are cut, at most one a key."""

    splits: int = 8

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.splits < 1:
            raise ValueError(f"splits={self.splits}; allowed: whole numbers from 1")


def unsupported(case: Case) -> str | None:
    """One device only, and no part without a key."""
    splits = int(dict(case.variant.options).get("splits") or 1)
    if splits > case.problem.seqlen:
        return f"{case.variant.name} cannot cut problem.seqlen={case.problem.seqlen} keys into splits={splits} parts"
    return one_device_only(case)


def blocks(splits: int, queries: int, keys: int, causal: bool) -> Iterator[Block]:
    """What the queries see of each part, parts in the order of the keys; a query is at key position S - Sq + i."""
    query_offset = keys - queries
    for part in range(splits):
        bounds = part * keys // splits, (part + 1) * keys // splits
        for block in visible_blocks((query_offset, keys), bounds, causal):
            yield block.shifted(query_offset, 0)


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """q (B, Sq, H, D), k, v (B, S, Hk, D) -> out (B, Sq, H, D), lse (B, H, Sq)."""
    running = rank.running(q)
    for block in blocks(rank.options.splits, q.shape[1], k.shape[1], rank.causal):
        rank.join(running, block, q, k, v)
    return running.result(rank.dtype, rank.lse_dtype)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Results:
    """Nothing: nobody trains while decoding."""
    return None, None, None
