"""Attention that gathers the keys of all ranks, on any device; the library adds their gradients."""

import torch
import torch.distributed as dist

from tests.golden.ring import Gather


class Gathered(Gather):
    @staticmethod
    def backward(ctx, gradient):
        parts = [x.contiguous() for x in gradient.chunk(dist.get_world_size(ctx.group), 1)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts, group=ctx.group)
        return mine, None


def gathering(q, k, v, *, causal=True, softmax_scale=None, group=None, late=0):
    """Keys and values of all ranks; late: by how many tokens too early the mask lets a query see."""
    first = dist.get_rank(group) * q.shape[1]
    keys, values = Gathered.apply(k, group), Gathered.apply(v, group)
    rows = torch.arange(q.shape[1], device=q.device)[:, None] + first + late
    mask = (rows >= torch.arange(keys.shape[1], device=q.device)) | (not causal)
    tensors = (x.transpose(1, 2) for x in (q, keys, values))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*tensors, attn_mask=mask, scale=softmax_scale, enable_gqa=True).transpose(1, 2)


def wrong_at_8(q, k, v, *, causal=True, softmax_scale=None, group=None):
    late = int(dist.get_world_size(group) == 8 and dist.get_rank(group) == 5)
    return gathering(q, k, v, causal=causal, softmax_scale=softmax_scale, group=group, late=late)
