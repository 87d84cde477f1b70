"""Keys and values of all ranks gathered, then SDPA: a stranger's context parallelism over any backend."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class Gather(torch.autograd.Function):
    """(B, S/W, ...) of every rank -> (B, S, ...)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any, summed: bool) -> Tensor:
        ctx.group, ctx.summed = group, summed
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradients[0].contiguous()
        if ctx.summed:
            wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
            dist.all_reduce(wide, group=ctx.group)
            gradient = wide.to(gradient.dtype)
        return gradient.chunk(dist.get_world_size(ctx.group), dim=1)[dist.get_rank(ctx.group)], None, None


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any, summed: bool = True
) -> Tensor:
    first = dist.get_rank(group) * q.shape[1]
    k, v = (Gather.apply(x, group, summed) for x in (k, v))
    mask = torch.arange(k.shape[1]) <= torch.arange(first, first + q.shape[1])[:, None] if causal else None
    wide = torch.promote_types(q.dtype, torch.float32)
    q32, k32, v32 = (x.to(wide).transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q32, k32, v32, attn_mask=mask, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2).to(q.dtype)


def keeps_its_own_gradient(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """The gradients that other ranks have of a rank's keys and values are lost."""
    return attend(q, k, v, summed=False, **how)
