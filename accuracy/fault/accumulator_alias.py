"""Gradients come in a buffer that every step reuses; `.to(float32)` of one that is float32 already is no copy.

ring-flash-attention's ring, zigzag and stripe backward with float32 inputs: dq, dk, dv wrong by 0.4 to 4.8.
There dk and dv are lost in a race with the wire, which a simulated world refuses (a tensor on its way was written to:
`invalid`); here they travel as copies, and dq is what the alias alone makes wrong.
"""

from typing import Any

from torch import Tensor

from accuracy.fault.base import BrokenKernel, with_kernel
from accuracy.kernel.base import Kernel
from accuracy.precision import Precision
from accuracy.variant import ring
from accuracy.variant.base import Rank
from accuracy.variant.ring import (
    BACKWARD_PLACES,
    FORWARD_PLACES,
    SHARDINGS,
    decline,
    forward,
)
from accuracy.world.base import Tensors

__all__ = [
    "BACKWARD_PLACES",
    "EXPECTED",
    "FORWARD_PLACES",
    "PRECISION",
    "SHARDING",
    "SHARDINGS",
    "backward",
    "decline",
    "forward",
]

SHARDING = "contiguous"
PRECISION = Precision(dq_accumulator="float32", dkv_accumulator="float32", gradient_wire="float64")  # a wire copies
EXPECTED = {"dq": "logic"}


class Broken(BrokenKernel):
    """A kernel that writes its gradients where it wrote the last ones."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.buffers: Tensors | None = None

    def backward(self, *tensors: Tensor, **how: Any) -> Tensors:
        """See `Kernel.backward`."""
        gradients = self.kernel.backward(*tensors, **how)
        if self.buffers is None:
            self.buffers = tuple(x.clone() for x in gradients)
        for buffer, x in zip(self.buffers, gradients, strict=True):
            buffer.copy_(x)
        return self.buffers


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.backward(with_kernel(rank, Broken), dout, q, k, v, out, lse)
