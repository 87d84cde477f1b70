"""The sign of the exponent in the softmax scale: sqrt(D) for 1 / sqrt(D), in the forward.

lucidrains' ring-attention-pytorch, commit 16fd91d.
"""

from dataclasses import replace

from torch import Tensor

from accuracy.variant import ring
from accuracy.variant.base import Rank
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, SHARDINGS, backward, unsupported
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
EXPECTED = {"out": "logic", "lse": "logic"}


async def forward(rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
    """The ring's, with the inverse scale."""
    return await ring.forward(replace(rank, scores=replace(rank.scores, scale=1 / rank.scale)), q, k, v)
