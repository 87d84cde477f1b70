"""A zigzag ring on real ranks, which the test starts by itself."""

from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist

import accuracy


class Gather(torch.autograd.Function):
    """The shards of all ranks, one after another; a shard's gradient is the sum of what all ranks have for it."""

    @staticmethod
    def forward(ctx, shard, group):
        ctx.group, ctx.rank, ctx.length = group, dist.get_rank(group), shard.shape[1]
        shards = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
        dist.all_gather(shards, shard.contiguous(), group)
        return torch.cat(shards, 1)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.contiguous()
        dist.all_reduce(total, group=ctx.group)
        return total.narrow(1, ctx.rank * ctx.length, ctx.length), None


def zigzag_attention(q, k, v, *, causal=True, softmax_scale=None, group=None):
    """Stands for zigzag_ring_flash_attn_func: rank r holds chunks r and 2 W - 1 - r."""
    return _zigzag(q, k, v, causal, softmax_scale, group)


def wrong_zigzag_attention(q, k, v, *, causal=True, softmax_scale=None, group=None):
    """The planted fault: a rank's first chunk has the mask of its second."""
    return _zigzag(q, k, v, causal, softmax_scale, group, wrong=True)


def _zigzag(q, k, v, causal, softmax_scale, group, wrong=False):
    rank, size, chunk = dist.get_rank(group), dist.get_world_size(group), q.shape[1] // 2
    token = torch.arange(chunk, device=q.device)
    places = [torch.cat([token + r * chunk, token + (2 * size - 1 - r) * chunk]) for r in range(size)]
    keys, values = (Gather.apply(x, group) for x in (k, v))
    row = places[rank].clone()
    if wrong:
        row[:chunk] += (2 * size - 1 - 2 * rank) * chunk
    seen = row[:, None] >= torch.cat(places) if causal else None
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, keys, values)), attn_mask=seen, scale=softmax_scale, enable_gqa=True
    )
    return out.transpose(1, 2)


def test_a_zigzag_ring_is_accurate():
    accuracy.assert_accurate(zigzag_attention, sharding="zigzag", dtype="float32", world_size=[1, 2])


@pytest.mark.skipif(not (torch.cuda.is_available() and find_spec("ring_flash_attn")), reason="needs the package, a GPU")
def test_the_package_s_own_zigzag_ring_is_accurate():
    accuracy.assert_accurate("ring_flash_attn_zigzag", kernel="flash_attn", dtype="bfloat16", world_size=2)


def test_a_chunk_with_the_other_s_mask_is_found():
    with pytest.raises(AssertionError):
        accuracy.assert_accurate(wrong_zigzag_attention, sharding="zigzag", dtype="float32", world_size=2)
