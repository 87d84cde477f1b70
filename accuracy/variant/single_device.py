"""Single device: the kernel run once on the whole sequence on one device; what all others are compared with.

Packed documents are one call each, as a kernel for sequences of several lengths computes them.
"""

from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.precision import Precision
from accuracy.variant.base import Rank
from accuracy.world.base import Tensors

SHARDINGS = ("contiguous",)
PRECISION = Precision()
FORWARD_PLACES = ("partial",)
BACKWARD_PLACES = ("gradient_partial",)
FEATURES = ("cross_lengths", "top_left", "window", "documents", "softcap")


def unsupported(case: Case) -> str | None:
    """One device only."""
    return one_device_only(case)


def one_device_only(case: Case) -> str | None:
    """Why a variant of one device cannot run on several ranks, or None."""
    if case.world_size == 1:
        return None
    return f"{case.variant.name} runs on one device: use world_size=1, not {case.world_size}"


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """q (B, Sq, H, D), k, v (B, S, Hk, D) -> out (B, Sq, H, D), lse (B, H, Sq)."""
    out, lse = rank.attend_rows(rank.whole(q, k), q, k, v)
    return out.to(rank.dtype), lse.to(rank.lse_dtype)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """-> dq (B, Sq, H, D), dk, dv (B, S, Hk, D)."""
    dq, dk, dv = rank.differentiate_rows(rank.whole(q, k), dout, q, k, v, out, lse)
    return dq.to(rank.dtype), dk.to(rank.dtype), dv.to(rank.dtype)
