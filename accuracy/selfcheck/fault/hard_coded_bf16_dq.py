"""dq is rounded to bfloat16 whatever the inputs' dtype: float16 and float32 runs have bfloat16 gradients.

ring-flash-attention's ring_flash_attn.py, its PR #87.
"""

import torch
from torch import Tensor

from accuracy.variant import ring
from accuracy.variant.base import Rank
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, SHARDINGS, forward, unsupported
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "EXPECTED",
    "FORWARD_PLACES",
    "PRECISION",
    "SHARDING",
    "SHARDINGS",
    "backward",
    "forward",
    "unsupported",
]

SHARDING = "contiguous"
EXPECTED = {"dq": "precision_floor"}


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, with one cast at its end."""
    dq, dk, dv = await ring.backward(rank, dout, q, k, v, out, lse)
    return dq.to(torch.bfloat16).to(rank.dtype), dk, dv
