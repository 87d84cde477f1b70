"""The backward is given what a rank's own block gave (lse, out or both), or another half's, not the final ones."""

from typing import Any

import torch
from torch import Tensor

from accuracy.variant import ring, zigzag
from accuracy.variant.base import Rank
from accuracy.world.base import Results
from tests.fault.planted.base import GRADIENTS, Fault, Schedule, changed, given


def kept(*names: str) -> Schedule:
    """The ring that keeps its own block's results for the backward."""

    async def forward(self: Schedule, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
        (block,) = rank.blocks_between(rank.world.rank, q.shape[1])
        return *await ring.SCHEDULE.forward(rank, q, k, v), *rank.attend(block, q, k, v)

    backward_of_ring: Any = ring.SCHEDULE.backward

    async def backward(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
        *shards, out, lse, own_out, own_lse = tensors
        final = own_out if "out" in names else out, own_lse.to(lse.dtype) if "lse" in names else lse
        results: Results = await backward_of_ring(rank, *shards, *final)
        return results

    return changed(ring.SCHEDULE, forward=forward, backward=backward)


def halves(rank: Rank, *tensors: Tensor) -> tuple[Any, ...]:
    """The two chunks' lse exchanged."""
    *others, lse = tensors
    return rank, *others, torch.cat(lse.chunk(2, dim=-1)[::-1], dim=-1)


PARTIAL = ("partial",)
PARTS = {
    "partial_lse": Fault(kept("lse"), GRADIENTS, causes=PARTIAL),
    "partial_out": Fault(kept("out"), "dq dk", causes=PARTIAL),
    "partial_out_and_lse": Fault(kept("out", "lse"), GRADIENTS, causes=PARTIAL),
    "partial_lse_of_other_half": Fault(given("backward", halves, zigzag.SCHEDULE), GRADIENTS),
}
