"""Keys and values are padded to a multiple of 32 with memory that is not zeroed, and the padding is attended to.

TransformerEngine 9c127ef: padded v real lengths.
"""

from typing import Any

from torch import Tensor

from accuracy.kernel.base import Kernel
from tests.fault.planted.base import on_kernel, unwritten

EXPECTED = {"out": "invalid", "lse": "invalid"}


def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """Full blocks with the padding as further keys."""
    if how["causal"]:
        return kernel.forward(q, k, v, **how)
    padded = [unwritten((x.shape[0], -(-x.shape[1] // 32) * 32, *x.shape[2:]), x) for x in (k, v)]
    for buffer, x in zip(padded, (k, v), strict=True):
        buffer[:, : x.shape[1]] = x
    return kernel.forward(q, *padded, **how)


SCHEDULE = on_kernel(forward=forward)
