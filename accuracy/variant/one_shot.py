"""One-shot: the kernel run once on the whole sequence on one device; what all others are compared with."""

from torch import Tensor

from accuracy.case import Case
from accuracy.masks import Block
from accuracy.precision import Precision
from accuracy.variant.base import Rank
from accuracy.world.base import Tensors

SHARDINGS = ("contiguous",)
PRECISION = Precision()
FORWARD_PLACES = ("partial",)
BACKWARD_PLACES = ("gradient_partial",)
CROSS_LENGTHS = True


def decline(case: Case) -> str | None:
    """One device only."""
    return one_device_only(case)


def one_device_only(case: Case) -> str | None:
    """Why a variant of one device cannot run on several ranks, or None."""
    if case.world_size == 1:
        return None
    return f"{case.variant.name} runs on one device: use world_size=1, not {case.world_size}"


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """q (B, Sq, H, D), k, v (B, S, Hk, D) -> out (B, Sq, H, D), lse (B, H, Sq)."""
    out, lse = rank.attend(_whole(rank, q, k), q, k, v)
    return out.to(rank.dtype), lse.to(rank.lse_dtype)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """-> dq (B, Sq, H, D), dk, dv (B, S, Hk, D)."""
    dq, dk, dv = rank.differentiate(_whole(rank, q, k), dout, q, k, v, out, lse)
    return dq.to(rank.dtype), dk.to(rank.dtype), dv.to(rank.dtype)


def _whole(rank: Rank, q: Tensor, k: Tensor) -> Block:
    return Block(slice(0, q.shape[1]), slice(0, k.shape[1]), rank.causal)
