"""The causal mask of fewer queries than keys is aligned at the top left, where the schedule means the bottom right.

flash-attention changed its alignment in 2.1.
"""

from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.selfcheck.fault.base import on_kernel
from accuracy.variant import llama3
from accuracy.world.base import Tensors

EXPECTED = {"out": "logic", "lse": "logic", "dq": "logic", "dk": "logic", "dv": "logic"}


def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """The first row sees the first key only."""
    seen = q.shape[1] if how["causal"] else k.shape[1]
    return kernel.forward(q, k[:, :seen], v[:, :seen], **how)


def backward(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
    """Of the same rows and keys."""
    seen = q.shape[1] if how["causal"] else k.shape[1]
    dq, *pair = kernel.backward(dout, q, k[:, :seen], v[:, :seen], *outs, **how)
    return dq, *(torch.nn.functional.pad(x, (0, 0, 0, 0, 0, k.shape[1] - seen)) for x in pair)


SCHEDULE = on_kernel(llama3.SCHEDULE, forward=forward, backward=backward)
