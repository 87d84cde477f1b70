"""Gradients come in a buffer that every step reuses; `.to(float32)` of one that is float32 already is no copy.

ring-flash-attention's ring, zigzag and stripe backward with float32 inputs: dq, dk, dv wrong by 0.4 to 4.8.
There dk and dv are lost on the wire, which still reads the buffer while the next block is written to it. A simulated
world refuses that (a tensor on its way was written to: `invalid`); here they travel as copies, and are lost where they
are received into the buffer that holds the next block.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from accuracy.core.precision import Precision
from accuracy.kernel.base import Kernel
from accuracy.selfcheck.fault.base import BrokenKernel, changed, with_kernel
from accuracy.variant import ring
from accuracy.variant.base import Rank
from accuracy.variant.join.accumulator import Accumulator
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, SHARDINGS, forward, unsupported
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
PRECISION = Precision(dq_accumulator="float32", dkv_accumulator="float32", gradient_wire="float64")  # a wire copies
EXPECTED = {"dq": "logic", "dk": "logic", "dv": "logic"}


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


@dataclass
class Received(Accumulator):
    """A sum that is received into the memory it began in, the kernel's buffer."""

    def take(self, received: Tensor) -> None:
        """See `Accumulator.take`."""
        self.value().copy_(received)


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""

    def accumulator(self: Rank, name: str, like: Tensor) -> Accumulator:
        plain = type(rank).accumulator(self, name, like)
        return Received(plain.like, plain.dtype)

    broken = changed(with_kernel(rank, Broken), accumulator=accumulator)
    return await ring.backward(broken, dout, q, k, v, out, lse)
