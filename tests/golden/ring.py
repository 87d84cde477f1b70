"""A healthy ring as a stranger writes one: gathers keys and values, gradients summed by a reduce-scatter of its own."""

import torch
import torch.distributed as dist
from torch import Tensor


class Gather(torch.autograd.Function):
    """All ranks' tokens; the backward adds every rank's gradient of ours, in rank order."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, 1)

    @staticmethod
    def backward(context, gradient):
        group, size = context.group, dist.get_world_size(context.group)
        parts = [torch.empty_like(gradient) for _ in range(size)]
        dist.all_gather(parts, gradient.contiguous(), group=group)
        return torch.stack(parts).sum(0).chunk(size, 1)[dist.get_rank(group)], None


def ring(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group, gather=Gather
) -> tuple[Tensor, Tensor]:
    """q (B, S/W, H, D), k, v (B, S/W, Hk, D), contiguous shards; out, lse."""
    rank, share = dist.get_rank(group), q.shape[2] // k.shape[2]
    keys, values = (gather.apply(x, group).float().repeat_interleave(share, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), keys) * softmax_scale
    if causal:
        rows = torch.arange(q.shape[1])[:, None] + rank * q.shape[1]
        scores = scores.masked_fill(torch.arange(keys.shape[1]) > rows, float("-inf"))
    lse = scores.logsumexp(-1)
    out = torch.einsum("bhqk,bkhd->bqhd", (scores - lse[..., None]).exp(), values)
    return out.to(q.dtype), lse


def wrong_scale(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, **how) -> tuple[Tensor, Tensor]:
    return ring(q, k, v, softmax_scale=softmax_scale * 1.01, **how)


def doubled_gradient(q: Tensor, k: Tensor, v: Tensor, **how) -> tuple[Tensor, Tensor]:
    return ring(2 * q - q.detach(), k, v, **how)


def dropped_block(q: Tensor, k: Tensor, v: Tensor, **how) -> tuple[Tensor, Tensor]:
    return ring(q, k, torch.cat([v[:, :-8], torch.zeros_like(v[:, -8:])], 1), **how)
