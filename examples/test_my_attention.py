"""Two tests of attention of your own: a kernel by itself, and a function that shares its work with other ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

import accuracy


def my_kernel(q, k, v, *, causal, softmax_scale):  # (B, S, H, D)
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(*heads_first, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)


def my_gathered_attention(q, k, v, *, causal, softmax_scale, group):  # (B, S / ranks, H, D), forward alone
    keys, values = ([torch.empty_like(x) for _ in range(dist.get_world_size(group))] for x in (k, v))
    dist.all_gather(keys, k.contiguous(), group=group)
    dist.all_gather(values, v.contiguous(), group=group)
    k, v = torch.cat(keys, 1), torch.cat(values, 1)
    row = torch.arange(q.shape[1], device=q.device)[:, None] + dist.get_rank(group) * q.shape[1]
    seen = (row >= torch.arange(k.shape[1], device=q.device)) | (not causal)
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(*heads_first, attn_mask=seen, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2).detach()


def test_the_kernel_rounds_and_does_no_more():
    q, k, v, dout = (torch.randn(2, 200, heads, 64, dtype=torch.bfloat16) for heads in (8, 2, 2, 8))
    accuracy.assert_close(my_kernel, q, k, v, dout=dout, causal=True)


def test_two_ranks_have_the_error_of_one():
    accuracy.assert_accurate(my_gathered_attention, sharding="contiguous", dtype="bfloat16", world_size=[1, 2])
