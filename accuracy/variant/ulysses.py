"""Ulysses: exchange tokens for heads, attend to the whole sequence with a share of the heads, exchange back.

Jacobs et al. 2023 (arXiv 2309.14509). Each rank computes H/W query heads with the plain kernel, so no partial is
merged. With fewer key/value heads than ranks, each head goes to W/Hk ranks, whose dk and dv are summed at home.
"""

import torch
from torch import Tensor

from accuracy.core.case import Case, Problem
from accuracy.core.dtype import Precision
from accuracy.runtime import sharding
from accuracy.variant.base import Rank, Schedule
from accuracy.world.base import Tensors


class Ulysses(Schedule):
    """Tokens for heads, and back."""

    def unsupported(self, case: Case) -> str | None:
        """The ranks divide the query heads, and divide the key/value heads or are divided by them."""
        return heads_unsupported("ulysses", case.world_size, case.problem)

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """See `Schedule.forward`."""
        q, k, v = await to_heads(rank, q, *one_per_rank(rank, k, v))
        out, lse = rank.attend_rows(q, k, v)
        (out,) = await to_tokens(rank, rank.place("wire"), out.to(rank.dtype))
        (lse,) = await to_tokens(rank, rank.lse_dtype, lse.transpose(1, 2).unsqueeze(-1))
        return out.to(rank.dtype), lse.squeeze(-1).transpose(1, 2).contiguous()

    async def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """See `Schedule.backward`."""
        heads_kv = k.shape[2]
        dout, q, out, k, v = await to_heads(rank, dout, q, out, *one_per_rank(rank, k, v))
        lse = await lse_to_heads(rank, lse)
        gradients = rank.differentiate_rows(dout, q, k, v, out, lse)
        dq, dk, dv = await to_tokens(rank, rank.place("gradient_wire"), *gradients)
        return dq.to(rank.dtype), sum_copies(rank, dk, heads_kv), sum_copies(rank, dv, heads_kv)


def heads_unsupported(name: str, size: int, problem: Problem) -> str | None:
    """Why so many ranks cannot share a problem's heads, or None."""
    size_of = "world_size" if name == "ulysses" else "ulysses_ranks"
    if problem.heads % size:
        return f"{name} splits heads over ranks: {size_of} {size} must divide problem.heads={problem.heads}"
    if problem.heads_kv % size and size % problem.heads_kv:
        return f"{name} needs {size_of} {size} to divide problem.heads_kv={problem.heads_kv} or to be a multiple of it"
    return None


def one_per_rank(rank: Rank, *tensors: Tensor) -> Tensors:
    """Key/value heads repeated until each rank can have one."""
    return tuple(x.repeat_interleave(max(1, rank.world.size // x.shape[2]), dim=2) for x in tensors)


def _split_heads(x: Tensor, size: int) -> Tensor:
    """(B, L, H, D) -> (W, B, L, H/W, D)."""
    return x.unflatten(2, (size, -1)).movedim(2, 0).contiguous()


async def to_heads(rank: Rank, *tensors: Tensor) -> Tensors:
    """(B, S/W, H, D) -> (B, S, H/W, D), in the dtype of the wire and back."""
    wire = rank.place("wire")
    received = await rank.world.all_to_all([_split_heads(x.to(wire), rank.world.size) for x in tensors])
    return tuple(sharding.join(x, rank.sharding).to(rank.dtype) for x in received)


async def lse_to_heads(rank: Rank, lse: Tensor) -> Tensor:
    """(B, H, S/W) -> (B, H/W, S)."""
    (lse,) = await rank.world.all_to_all([_split_heads(lse.transpose(1, 2).unsqueeze(-1), rank.world.size)])
    return sharding.join(lse, rank.sharding).squeeze(-1).transpose(1, 2)


async def to_tokens(rank: Rank, wire: torch.dtype, *tensors: Tensor) -> Tensors:
    """(B, S, H/W, D) -> (B, S/W, H, D)."""
    size = rank.world.size
    received = await rank.world.all_to_all([sharding.cut(x.to(wire), rank.sharding, size) for x in tensors])
    return tuple(x.movedim(0, 2).flatten(2, 3) for x in received)


def sum_copies(rank: Rank, gradient: Tensor, heads_kv: int) -> Tensor:
    """The gradient of each key/value head, over the ranks that had a copy of it."""
    first, *others = gradient.unflatten(2, (heads_kv, -1)).unbind(3)
    total = first.to(rank.place("dkv_accumulator"), copy=True)
    for other in others:
        total += other
    return total.to(rank.dtype)


SCHEDULE = Ulysses(
    shardings=("contiguous", "zigzag"),
    features=("window", "documents", "softcap", "head_dim_v", "sinks"),
    precision=Precision(gradient_wire="input"),
    forward_places=("partial", "wire"),
    backward_places=("gradient_partial", "dkv_accumulator", "wire", "gradient_wire"),
)
