"""The kernel pads lse to a multiple of 32 rows, the caller reads it as if it had not.

yunchang #122.
"""

from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Kernel
from tests.fault.planted.base import on_kernel

EXPECTED = {"out": "logic", "lse": "logic"}


def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """The first numbers of the padded lse."""
    out, lse = kernel.forward(q, k, v, **how)
    padded = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32))
    return out, padded.flatten()[: lse.numel()].view(lse.shape)


SCHEDULE = on_kernel(forward=forward)
