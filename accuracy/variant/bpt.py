"""Blockwise parallel attention on one device: chunks of queries against chunks of keys, joined outside the kernel.

Liu and Abbeel 2023 (arXiv 2305.19370). The two chunk sizes may differ; the last chunks may be shorter. In the
backward, each pair of chunks adds to dq of its rows and to dk, dv of its keys.
"""

from dataclasses import dataclass

from torch import Tensor

from accuracy.case import Case
from accuracy.masks import Block, visible_blocks
from accuracy.variant.base import Rank
from accuracy.variant.one_shot import one_device_only
from accuracy.variant.ring import PRECISION, ring_backward, ring_forward
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "FORWARD_PLACES",
    "PRECISION",
    "SHARDINGS",
    "Options",
    "backward",
    "blocks",
    "decline",
    "forward",
]

SHARDINGS = ("contiguous",)
FORWARD_PLACES = ("partial", "out_accumulator", "lse", "merge")  # the ring's, less what only travel rounds
BACKWARD_PLACES = ("gradient_partial", "dq_accumulator", "dkv_accumulator")


@dataclass(frozen=True)
class Options:
    """Chunk sizes in tokens; of a rank's tokens, at most all."""

    query_chunk: int = 128
    key_chunk: int = 64


def decline(case: Case) -> str | None:
    """One device only, and chunks of at least one token."""
    return one_device_only(case) or chunks_too_small(case)


def chunks_too_small(case: Case) -> str | None:
    """Why chunk sizes cannot be, or None."""
    for key, value in case.variant.options:
        if isinstance(value, int) and value < 1:
            return f"{case.variant.name} has {key}={value}; allowed: 1 or more"
    return None


def chunked(rank: Rank, length: int, causal: bool) -> list[Block]:
    """All pairs of chunks of `length` queries and keys that see each other, keys in order for each row chunk."""
    return [
        block
        for query in _ranges(length, rank.options.query_chunk)
        for key in _ranges(length, rank.options.key_chunk)
        for block in visible_blocks(query, key, causal)
    ]


def _ranges(length: int, chunk: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + chunk, length)) for begin in range(0, length, chunk)]


def blocks(rank: Rank, source: int, length: int) -> list[Block]:
    """A world of one rank: all chunks are one's own."""
    return chunked(rank, length, rank.causal)


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """q (B, S, H, D), k, v (B, S, Hk, D) -> out (B, S, H, D), lse (B, H, S)."""
    return await ring_forward(rank, blocks, q, k, v)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """-> dq (B, S, H, D), dk, dv (B, S, Hk, D)."""
    return await ring_backward(rank, blocks, dout, q, k, v, out, lse)
