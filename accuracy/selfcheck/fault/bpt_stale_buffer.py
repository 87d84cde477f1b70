"""The chunk loop of a ring step adds into buffers that the next step reuses, and nobody clears them.

ring-flash-attention #24: the forward is right, dq's error grows with the rank (rank 0 right), that of dk and dv falls
(last rank right). The remedy is one `zero_` before each step's chunks.
"""

import torch
from torch import Tensor

from accuracy.core.masks import Block, Visibility
from accuracy.selfcheck.fault.base import changed
from accuracy.variant import ring
from accuracy.variant.base import Rank
from accuracy.variant.bpt import pairs
from accuracy.variant.bpt_ring import (
    BACKWARD_PLACES,
    FORWARD_PLACES,
    PRECISION,
    SHARDINGS,
    Options,
    forward,
    unsupported,
)
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "EXPECTED",
    "FORWARD_PLACES",
    "PRECISION",
    "SHARDING",
    "SHARDINGS",
    "Options",
    "backward",
    "forward",
    "unsupported",
]

SHARDING = "contiguous"
EXPECTED = {"dq": "logic", "dk": "logic", "dv": "logic"}


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, each step's block computed in chunks."""
    buffers = tuple(torch.zeros_like(x, dtype=rank.place("dq_accumulator")) for x in (q, k, v))

    def differentiate(self: Rank, block: Block, *tensors: Tensor) -> Tensors:
        query, key = ((part.start, part.stop) for part in (block.query, block.key))
        for chunk in pairs(self.options, Visibility(block.causal), query, key):
            dq, dk, dv = type(rank).differentiate(self, chunk, *tensors)
            for buffer, rows, x in zip(buffers, (chunk.query, chunk.key, chunk.key), (dq, dk, dv), strict=True):
                buffer[:, rows] += x
        return tuple(buffer.clone() for buffer in buffers)

    return await ring.backward(changed(rank, differentiate=differentiate), dout, q, k, v, out, lse)
