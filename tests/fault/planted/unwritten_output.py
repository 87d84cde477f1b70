"""dk and dv are summed over one more slot than was written: what memory held, NaN or not, is added.

NSA-triton #27, for some ratios of heads.
"""

from typing import Any

from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.world.base import Tensors
from tests.fault.planted.base import on_kernel, unwritten

EXPECTED = {"dk": "invalid", "dv": "invalid"}


def backward(kernel: Kernel, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *outs: Tensor, **how: Any) -> Tensors:
    """The sum over two slots, of which one was written."""
    dq, *pair = kernel.backward(dout, q, k, v, *outs, **how)
    sums = []
    for x in pair:
        slots = unwritten((2, *x.shape), x)
        slots[0] = x
        sums.append(slots.sum(0))
    return dq, *sums


SCHEDULE = on_kernel(backward=backward)
