"""dq is rounded to bfloat16 whatever the inputs' dtype: float16 and float32 runs have bfloat16 gradients.

ring-flash-attention's ring_flash_attn.py, its PR #87.
"""

import torch
from torch import Tensor

from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors

EXPECTED = {"dq": "precision_floor"}


class HardCoded(Ring):
    """The ring, with one cast at the end of its backward."""

    async def backward(self, rank: Rank, *tensors: Tensor) -> Tensors:
        """See `Schedule.backward`."""
        dq, dk, dv = await super().backward(rank, *tensors)
        return dq.to(torch.bfloat16).to(rank.dtype), dk, dv


SCHEDULE = HardCoded()
