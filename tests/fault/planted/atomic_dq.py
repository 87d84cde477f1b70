"""dq is a sum over key blocks in whatever order they finish: it differs from run to run, dk and dv do not.

flash-attention #414: atomic adds, in float32 whatever the inputs' dtype is: they hardly round more than any other sum.
"""

import random
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.world.base import Tensors
from tests.fault.planted.base import on_kernel

EXPECTED = {"dq": "nondeterministic"}


def backward(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
    """dq of full blocks as a sum of four, in any order."""
    dq, dk, dv = kernel.backward(dout, q, k, v, *outs, **how)
    if how["causal"]:
        return dq, dk, dv
    how |= {"gradient_dtype": torch.promote_types(q.dtype, torch.float32)}
    pairs = zip(k.tensor_split(4, dim=1), v.tensor_split(4, dim=1), strict=True)
    parts = [kernel.backward(dout, q, *pair, *outs, **how)[0] for pair in pairs]
    random.SystemRandom().shuffle(parts)
    return sum(parts[1:], start=parts[0]).to(dq.dtype), dk, dv


SCHEDULE = on_kernel(backward=backward)
