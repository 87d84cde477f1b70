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
from accuracy.selfcheck.fault.base import changed, with_kernel
from accuracy.variant.base import Rank
from accuracy.variant.join.accumulator import Accumulator
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors

EXPECTED = {"dq": "logic", "dk": "logic", "dv": "logic"}


@dataclass
class Received(Accumulator):
    """A sum that is received into the memory it began in, the kernel's buffer."""

    def take(self, received: Tensor) -> None:
        """See `Accumulator.take`."""
        self.value().copy_(received)


class Aliased(Ring):
    """The ring, on a kernel that writes its gradients where it wrote the last ones."""

    async def backward(self, rank: Rank, *tensors: Tensor) -> Tensors:
        """See `Schedule.backward`."""
        buffers: list[Tensor] = []

        def into_buffers(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
            gradients = kernel.backward(*tensors, **how)
            buffers.extend(x.clone() for x in gradients[len(buffers) :])
            return tuple(buffer.copy_(x) for buffer, x in zip(buffers, gradients, strict=True))

        def accumulator(changed_rank: Rank, name: str, like: Tensor) -> Accumulator:
            plain = type(rank).accumulator(changed_rank, name, like)
            return Received(plain.like, plain.dtype)

        broken = changed(with_kernel(rank, backward=into_buffers), accumulator=accumulator)
        return await super().backward(broken, *tensors)


SCHEDULE = Aliased(  # a wire copies
    precision=Precision(dq_accumulator="float32", dkv_accumulator="float32", gradient_wire="float64")
)
