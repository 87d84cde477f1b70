"""lse comes as (B, S, H) and is read as (B, H, S): heads read as tokens.

flash-attention 2.6's varlen lse, ring-flash-attention #44 and #46.
"""

from typing import Any

from torch import Tensor

from accuracy.kernel.base import Kernel
from tests.fault.planted.base import on_kernel

EXPECTED = {"out": "logic", "lse": "logic"}


def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """lse (B, S, H) as if it were (B, H, S)."""
    out, lse = kernel.forward(q, k, v, **how)
    return out, lse.transpose(1, 2).contiguous().view(lse.shape)


SCHEDULE = on_kernel(forward=forward)
