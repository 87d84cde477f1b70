"""The sign of the exponent in the softmax scale: sqrt(D) for 1 / sqrt(D), in the forward.

lucidrains' ring-attention-pytorch, commit 16fd91d.
"""

from dataclasses import replace

from torch import Tensor

from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors

EXPECTED = {"out": "logic", "lse": "logic"}


class WrongScale(Ring):
    """The ring, with the inverse scale in its forward."""

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """See `Schedule.forward`."""
        return await super().forward(replace(rank, scores=replace(rank.scores, scale=1 / rank.scale)), q, k, v)


SCHEDULE = WrongScale()
