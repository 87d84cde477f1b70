"""Each query head's dk and dv are rounded to the inputs' dtype before the heads of a group are summed.

flash-attention 2's backward: 2.4e-3 where one key/value head a query head has 1.65e-3.
"""

from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.world.base import Tensors
from tests.fault.planted.base import on_kernel

EXPECTED = {"dk": "excess_rounding", "dv": "excess_rounding"}


def backward(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
    """dk, dv of each query head by itself, rounded, then summed."""
    share = q.shape[2] // k.shape[2]
    keys, values = (x.repeat_interleave(share, dim=2) for x in (k, v))
    dq, *pair = kernel.backward(dout, q, keys, values, *outs, **how)
    return dq, *(x.to(q.dtype).unflatten(2, (-1, share)).sum(3, dtype=torch.float64).to(x.dtype) for x in pair)


SCHEDULE = on_kernel(backward=backward)
