"""Blockwise parallel attention on one device: chunks of queries against chunks of keys, joined outside the kernel.

Liu and Abbeel 2023 (arXiv 2305.19370). The two chunk sizes may differ; the last chunks may be shorter. In the
backward, each pair of chunks adds to dq of its rows and to dk, dv of its keys.
"""

from dataclasses import dataclass

from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.masks import Block, Range, Visibility
from accuracy.variant.base import Rank
from accuracy.variant.ring import PRECISION, ring_backward, ring_forward
from accuracy.variant.single_device import one_device_only
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "FEATURES",
    "FORWARD_PLACES",
    "PRECISION",
    "RING_BLOCKS",
    "SHARDINGS",
    "Options",
    "backward",
    "chunked",
    "forward",
    "unsupported",
]

SHARDINGS = ("contiguous",)
FEATURES = ("window", "documents", "softcap")
FORWARD_PLACES = ("partial", "out_accumulator", "lse", "merge")  # the ring's, less what only travel rounds
BACKWARD_PLACES = ("gradient_partial", "dq_accumulator", "dkv_accumulator")


@dataclass(frozen=True)
class Options:
    """Chunk sizes in tokens; of a rank's tokens, at most all."""

    query_chunk: int = 128
    key_chunk: int = 64


def unsupported(case: Case) -> str | None:
    """One device only, and chunks of at least one token."""
    return one_device_only(case) or chunks_too_small(case)


def chunks_too_small(case: Case) -> str | None:
    """Why chunk sizes cannot be, or None."""
    for key, value in case.variant.options:
        if isinstance(value, int) and value < 1:
            return f"{case.variant.name} has {key}={value}; allowed: 1 or more"
    return None


def chunked(rank: Rank, source: int, length: int) -> list[Block]:
    """All pairs of chunks of this rank's queries and the keys of rank `source` that see each other, in local positions.

    length: tokens a rank.
    """
    rows, columns = rank.world.rank * length, source * length
    found = pairs(rank.options, rank.visibility, (rows, rows + length), (columns, columns + length))
    return [block.shifted(rows, columns) for block in found]


def pairs(options: Options, visibility: Visibility, query: Range, key: Range) -> list[Block]:
    """All pairs of chunks of queries [a, b) and keys [c, d) that see each other, keys in order for each row chunk."""
    return [
        block
        for rows in _chunks(query, options.query_chunk)
        for columns in _chunks(key, options.key_chunk)
        for block in visibility.blocks(rows, columns)
    ]


def _chunks(whole: Range, chunk: int) -> list[Range]:
    return [(begin, min(begin + chunk, whole[1])) for begin in range(*whole, chunk)]


RING_BLOCKS = chunked


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """q (B, S, H, D), k, v (B, S, Hk, D) -> out (B, S, H, D), lse (B, H, S)."""
    return await ring_forward(rank, chunked, q, k, v)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """-> dq (B, S, H, D), dk, dv (B, S, Hk, D)."""
    return await ring_backward(rank, chunked, dout, q, k, v, out, lse)
