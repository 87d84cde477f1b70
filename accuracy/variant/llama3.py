"""Llama 3's context parallelism: gather all keys and values, attend once; scatter-reduce dk and dv in the backward.

Llama Team 2024 (arXiv 2407.21783, section 3.3.2), as ring-flash-attention's `llama3_flash_attn_varlen_func` runs it:
a few key/value heads at a time. Every query row is computed by one kernel call, so nothing is merged.
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import FromZero, OneOf, Precision
from accuracy.core.masks import Block
from accuracy.core.sharding import UNEVEN, segments, total
from accuracy.runtime import sharding
from accuracy.variant.base import Rank, Schedule
from accuracy.world.base import Tensors


@dataclass(frozen=True)
class Options:
    """heads_stride: key/value heads gathered at a time; it divides heads_kv; 0: all of them. add: how the ranks' dk and
    dv are summed, null: one after another, as NCCL's ring does; `tree`: neighbours first, then their sums, as its
    reduce-scatter in parallel trees (PAT)."""

    heads_stride: FromZero = 1
    add: Annotated[str, OneOf("tree")] | None = None


@dataclass(frozen=True)
class HeadGroup:
    """The key/value heads of one gather and the query heads that read them."""

    kv: slice
    query: slice


def head_groups(rank: Rank, heads: int, heads_kv: int) -> list[HeadGroup]:
    """All heads, `heads_stride` key/value heads at a time."""
    stride, share = rank.options.heads_stride or heads_kv, heads // heads_kv
    return [
        HeadGroup(slice(head, head + stride), slice(head * share, (head + stride) * share))
        for head in range(0, heads_kv, stride)
    ]


def blocks(rank: Rank, length: int) -> list[Block]:
    """Each run of local rows with the keys it sees, in the whole sequence: all of them, or those up to its last token;
    of its documents and windows only, where there are such. Every row is in one block."""
    keys = total(rank.sharding, length, rank.world.size)
    return [
        block.shifted(first - rows.start, 0)
        for rows, first in segments(rank.sharding, rank.world.rank, length, rank.world.size)
        for block in rank.visibility.blocks((first, first + rows.stop - rows.start), (0, keys))
    ]


async def _gathered(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> AsyncIterator[tuple[HeadGroup, Tensors]]:
    """Each group of heads with its keys and values (B, S, Hk', D); the next gather starts before they are given."""
    groups = head_groups(rank, q.shape[2], k.shape[2])

    def gather(group: HeadGroup) -> Awaitable[Tensors]:
        sent = (rank.widest(x[:, :, group.kv]) for x in (k, v))
        return rank.world.all_gather([x.to(rank.place("wire")).contiguous() for x in sent])

    arriving = gather(groups[0])
    for group, following in zip_longest(groups, groups[1:]):
        gathered = await arriving
        if following is not None:
            arriving = gather(following)
        yield group, tuple(sharding.join(x, rank.sharding).to(rank.dtype) for x in gathered)


def attend(rank: Rank, everything: Tensors, group: HeadGroup, q: Tensor, out: Tensor, lse: Tensor) -> None:
    """Fill in the out and lse of a group of heads. everything: all its keys and values (B, S, Hk', D), in sequence."""
    keys, values = everything
    for block in blocks(rank, q.shape[1]):
        out_block, lse_block = rank.attend(block, q[:, :, group.query], keys, values)
        out[:, block.query, group.query] = out_block
        lse[:, group.query, block.query] = lse_block


def differentiate(rank: Rank, everything: Tensors, group: HeadGroup, dq: Tensor, *given: Tensor) -> Tensors:
    """Fill in the dq of a group of heads; its dk and dv of all keys, in the shards of a reduce-scatter (W, B, S/W, Hk',
    D). given: dout, q, out, lse of all heads."""
    dout, q, out = (x[:, :, group.query] for x in given[:3])
    lse, (keys, values) = given[3][:, group.query], everything
    dk, dv = (torch.zeros_like(x, dtype=rank.place("dkv_accumulator")) for x in everything)
    for block in blocks(rank, q.shape[1]):
        dq_block, dk_block, dv_block = rank.differentiate(block, dout, q, keys, values, out, lse)
        dq[:, block.query, group.query] = dq_block
        dk[:, block.key] += dk_block
        dv[:, block.key] += dv_block
    wire = rank.place("gradient_wire")
    return tuple(sharding.cut(x.to(wire), rank.sharding, rank.world.size) for x in (dk, dv))


async def _summed(rank: Rank, shards: Sequence[Tensor]) -> Sequence[Tensor]:
    """This rank's slices of all ranks' (W, B, S/W, Hk', D), summed in the dtype that they are sent in."""
    if rank.options.add is None:
        return await rank.world.reduce_scatter(shards)
    own, size = rank.world.rank, rank.world.size
    received = await rank.world.all_to_all(shards)
    return [tree([x[(own + hop) % size] for hop in range(1, size + 1)]) for x in received]


def tree(parts: list[Tensor]) -> Tensor:
    """Their sum, each of two rounded; an odd one waits."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [*(one + other for one, other in pairs), *parts[len(parts) // 2 * 2 :]]
    return parts[0]


class Llama3(Schedule):
    """Gathers, attends once, scatter-reduces."""

    def unsupported(self, case: Case) -> str | None:
        """The stride divides the key/value heads."""
        stride = int(dict(case.variant.options).get("heads_stride") or 0)
        if stride and case.problem.heads_kv % stride:
            return f"heads_stride={stride} must divide problem.heads_kv={case.problem.heads_kv}"
        return None

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """See `Schedule.forward`."""
        out, lse = rank.unfilled(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=rank.lse_dtype)
        async for group, everything in _gathered(rank, q, k, v):
            attend(rank, everything, group, q, out, lse)
        return out, lse

    async def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Schedule.backward`. The ranks' dk and dv are summed in `gradient_wire`."""
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        async for group, everything in _gathered(rank, q, k, v):
            sums = await _summed(rank, differentiate(rank, everything, group, dq, dout, q, out, lse))
            dk[:, :, group.kv], dv[:, :, group.kv] = (x[:, : k.shape[1]] for x in sums)
        return dq, dk, dv


SCHEDULE = Llama3(
    shardings=("contiguous", "zigzag", UNEVEN),
    features=("window", "documents", "softcap", "head_dim_v", "sinks"),
    precision=Precision(dkv_accumulator="input", gradient_wire="input"),
    forward_places=("partial", "wire"),
    backward_places=("gradient_partial", "dkv_accumulator", "wire", "gradient_wire"),
    options=Options,
)
