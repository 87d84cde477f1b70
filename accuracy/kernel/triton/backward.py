"""The backward in two forms: split (two kernels, seven products, deterministic) and fused (one kernel, five products).

Which is faster depends on how many programs there are to fill the device: see jax-triton's pull request 177.
"""

import torch
from torch import Tensor

from accuracy.kernel.triton.key_gradient import key_gradient
from accuracy.kernel.triton.query_gradient import query_gradient
from accuracy.kernel.triton.statistics import row_statistics


def split(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *,
    scale: float, causal: bool, gradient_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See `accuracy.kernel.base.Kernel.backward`. Each gradient is rounded once, to `gradient_dtype`."""
    lse_bits, delta = row_statistics(dout, out, lse)
    dq, dk, dv = (_fresh(x, gradient_dtype) for x in (q, k, v))
    query_gradient(dq, dout, q, k, v, lse_bits, delta, scale, causal)
    key_gradient(dk, dv, None, dout, q, k, v, lse_bits, delta, scale, causal)
    return dq, dk, dv


def fused(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *,
    scale: float, causal: bool, gradient_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See `accuracy.kernel.base.Kernel.backward`. dq is summed in float32 memory, then scaled and rounded."""
    lse_bits, delta = row_statistics(dout, out, lse)
    dq, dk, dv = (_fresh(x, gradient_dtype) for x in (q, k, v))
    total = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    key_gradient(dk, dv, total, dout, q, k, v, lse_bits, delta, scale, causal)
    torch.mul(total, scale, out=dq)
    return dq, dk, dv


def _fresh(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for the gradient of x, contiguous whatever x is."""
    return torch.empty(x.shape, dtype=dtype, device=x.device)
