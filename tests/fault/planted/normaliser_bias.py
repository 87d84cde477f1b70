"""The numerator uses weights cut to fewer bits, the denominator uncut ones: with V = 1 out is a little below 1.

flash-attention PR #2721. Cut two bits behind the inputs' precision, so that the bias is smaller than the rounding.
"""

from typing import Any

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS
from accuracy.kernel.base import Kernel
from tests.fault.planted.base import apply, on_kernel, softmax

EXPECTED = {"out": "biased"}


def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """Weights cut, not rounded, to so many bits."""
    weights, _ = softmax(q, k, how["scale"], how["causal"])
    bits = FORMATS[str(q.dtype).removeprefix("torch.")].precision + 2
    mantissa, exponent = torch.frexp(weights)
    cut = torch.ldexp(torch.floor(mantissa * 2.0**bits) / 2.0**bits, exponent)
    return apply(cut, v).to(how["out_dtype"]), kernel.forward(q, k, v, **how)[1]


SCHEDULE = on_kernel(forward=forward)
