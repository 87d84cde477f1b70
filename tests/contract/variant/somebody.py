"""Attention as a user might have written it: gathers keys and values, lets autograd find the gradients."""

import torch
import torch.distributed as dist
from torch import Tensor

from tests.golden.ring import Gather
from tests.strangers import attend


def contiguous(q, k, v, *, causal: bool, softmax_scale: float, group: dist.ProcessGroup | None = None):
    """q (B, S/W, H, D) -> out (B, S/W, H, D), lse (B, H, S/W); group None: alone."""
    if group is not None:
        k, v = (Gather.apply(x, group) for x in (k, v))
    first = 0 if group is None else dist.get_rank(group) * q.shape[1]
    seen = torch.arange(k.shape[1]) <= torch.arange(first, first + q.shape[1])[:, None]
    out, lse = attend(q, k, v, scale=softmax_scale, bias=seen if causal else None, wide=q.dtype)
    return out, lse if q.dtype == torch.float64 else lse.float()


def without_lse(q: Tensor, k: Tensor, v: Tensor, **how):
    return contiguous(q, k, v, **how)[0]


def bhsd(q: Tensor, k: Tensor, v: Tensor, **how):
    out, lse = contiguous(*(x.transpose(1, 2) for x in (q, k, v)), **how)
    return out.transpose(1, 2), lse


def with_its_own_scale(q: Tensor, k: Tensor, v: Tensor, causal: bool, group: dist.ProcessGroup):
    return bhsd(q, k, v, causal=causal, softmax_scale=q.shape[-1] ** -0.5, group=group)


def of_one_device(q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float):
    return contiguous(q, k, v, causal=causal, softmax_scale=softmax_scale)


def in_the_default_group(q: Tensor, k: Tensor, v: Tensor, causal: bool, softmax_scale: float):
    return contiguous(q, k, v, causal=causal, softmax_scale=softmax_scale, group=dist.group.WORLD)


def without_mask(q: Tensor, k: Tensor, v: Tensor):
    return with_its_own_scale(q, k, v, True)


def wants_a_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool):
    return with_its_own_scale(q, k, v, causal)


def qkvpacked(qkv: Tensor, **how):
    return contiguous(*qkv.unbind(2), **how)


def varlen(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, max_seqlen: int, **how):
    """q (T, H, D) -> out (T, H, D), lse (H, T)."""
    assert cu_seqlens.dtype == torch.int32
    assert int(cu_seqlens.diff().max()) == max_seqlen
    batch = len(cu_seqlens) - 1
    out, lse = contiguous(*(x.unflatten(0, (batch, max_seqlen)) for x in (q, k, v)), **how)
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1, 2)


def rank_one_doubles_dq(q: Tensor, k: Tensor, v: Tensor, *, group: dist.ProcessGroup, **how):
    if dist.get_rank(group) == 1:
        q = q * 2 - q.detach()
    return contiguous(q, k, v, group=group, **how)


def rank_one_raises(q: Tensor, k: Tensor, v: Tensor, *, group: dist.ProcessGroup, **how):
    result = contiguous(q, k, v, group=group, **how)
    if dist.get_rank(group) == 1:
        raise ValueError("on purpose")
    return result
