"""Gradients of one block of attention by autograd, for out and lse over ALL keys of each query.

Kernels whose backward takes no out and lse know those of the block only. With w = exp(block lse - lse), the gradients
of the whole are those of the block for d block_out = w dout and d block_lse = w rowsum(dout (block_out - out)), because
P = w block_P. Of a single block they are the kernel's own, exactly; in a ring, w dout is rounded once more.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from accuracy.kernel.block import heads


def gradients(
    forward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """dq (B, Sq, H, D), dk, dv (B, Sk, Hk, D) in the inputs' dtype. forward: q, k, v -> out (B, Sq, H, D) and lse
    (B, H, Sq), both differentiable; it runs once more, for its graph."""
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        block_out, block_lse = forward(*leaves)
    share = torch.exp(block_lse.detach() - lse)
    outside = (dout * (block_out.detach().to(lse.dtype) - out)).sum(-1)
    (outside,) = heads.first(outside)
    dblock_out = (dout * heads.first(share.unsqueeze(-1))[0]).to(block_out.dtype)
    return torch.autograd.grad((block_out, block_lse), leaves, (dblock_out, share * outside))
