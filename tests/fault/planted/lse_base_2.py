"""The kernel's lse is a logarithm to base 2, merged as a natural one; blocks of equal lse would hide it.

pytorch #181645, sglang #40903, flashinfer #2113.
"""

import math
from typing import Any

from torch import Tensor

from accuracy.kernel.base import Kernel
from tests.fault.planted.base import on_kernel

EXPECTED = {"out": "logic", "lse": "logic"}


def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """lse to base 2."""
    out, lse = kernel.forward(q, k, v, **how)
    return out, lse / math.log(2)


SCHEDULE = on_kernel(forward=forward)
