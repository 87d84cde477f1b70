"""The chunk loop of a ring step adds into buffers that the next step reuses without clearing them.

ring-flash-attention #24: the forward is right, dq's error grows with the rank (rank 0 right), that of dk and dv falls
(last rank right). The remedy is one `zero_` before each step's chunks.
"""

from dataclasses import fields

import torch
from torch import Tensor

from accuracy.core.masks import Block, Visibility
from accuracy.variant.base import Rank
from accuracy.variant.bpt import pairs
from accuracy.variant.bpt_ring import SCHEDULE as BPT_RING
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors


class StaleRing(type(BPT_RING)):  # type: ignore[misc]
    """The chunked ring, whose backward has the fault."""

    async def backward(self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, *others: Tensor) -> Tensors:
        """A ring's, each step's block computed in chunks."""
        buffers = tuple(torch.zeros_like(x, dtype=rank.place("dq_accumulator")) for x in (q, k, k))

        class StaleRank(type(rank)):  # type: ignore[misc]
            def differentiate(self, block: Block, *tensors: Tensor) -> Tensors:
                query, key = ((part.start, part.stop) for part in (block.query, block.key))
                for chunk in pairs(self.options, Visibility(block.causal), query, key):
                    gradients = rank.differentiate(chunk, *tensors)
                    for buffer, rows, x in zip(buffers, (chunk.query, chunk.key, chunk.key), gradients, strict=True):
                        buffer[:, rows] += x
                return tuple(buffer.clone() for buffer in buffers)

        stale = StaleRank(**{field.name: getattr(rank, field.name) for field in fields(rank)})
        return await Ring().backward(stale, dout, q, k, *others)


SCHEDULE = StaleRing(**{field.name: getattr(BPT_RING, field.name) for field in fields(BPT_RING)})
