"""dq is a sum over key blocks in whatever order they finish: it differs from run to run, dk and dv do not.

flash-attention #414: atomic adds, in float32 whatever the inputs' dtype is: they hardly round more than any other sum.
"""

import random
from typing import Any

import torch
from torch import Tensor

from accuracy.selfcheck.fault.base import BrokenKernel, with_kernel
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
EXPECTED = {"dq": "nondeterministic"}


class Broken(BrokenKernel):
    """A kernel whose backward is broken."""

    def backward(self, *tensors: Tensor, **how: Any) -> Tensors:
        """See `Kernel.backward`."""

        dout, q, k, v, out, lse = tensors
        dq, dk, dv = self.kernel.backward(*tensors, **how)
        if how["causal"]:
            return dq, dk, dv
        unrounded = how | {"gradient_dtype": torch.promote_types(q.dtype, torch.float32)}
        parts = [
            self.kernel.backward(dout, q, *pair, out, lse, **unrounded)[0]
            for pair in zip(k.tensor_split(4, dim=1), v.tensor_split(4, dim=1), strict=True)
        ]
        random.SystemRandom().shuffle(parts)
        return sum(parts[1:], start=parts[0]).to(dq.dtype), dk, dv


async def backward(rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Tensors:
    """The ring's, on the broken kernel."""
    return await ring.backward(with_kernel(rank, Broken), dout, q, k, v, out, lse)
