"""What a kernel's results are off by, on one problem of its own."""

import torch

from accuracy.kernel.base import Kernel
from accuracy.reference.float64 import attention


def errors(
    kernel: Kernel, dtype: torch.dtype = torch.float32, stored: torch.dtype | None = None, *, batch: int = 1,
    length: int = 128, heads: int = 2, heads_kv: int = 2, dim: int = 64, scale: float = 0.125,
) -> dict[str, float]:  # fmt: skip
    """Relative Frobenius errors of out, lse, dq, dk, dv under a causal mask; stored: their dtype."""
    generator = torch.Generator().manual_seed(1)
    q, dout = (torch.randn(batch, length, heads, dim, generator=generator).to(dtype) for _ in range(2))
    k, v = (torch.randn(batch, length, heads_kv, dim, generator=generator).to(dtype) for _ in range(2))
    how, stored = {"scale": scale, "causal": True}, stored or dtype
    out, lse = kernel.forward(q, k, v, **how, out_dtype=stored)
    results = out, lse, *kernel.backward(dout, q, k, v, out, lse, **how, gradient_dtype=stored)
    reference = attention(q, k, v, dout, **how)
    named = zip(("out", "lse", "dq", "dk", "dv"), results, strict=True)
    return {
        name: float((x.double() - getattr(reference, name)).norm() / getattr(reference, name).norm())
        for name, x in named
    }
