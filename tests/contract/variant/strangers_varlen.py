"""Packed documents over ranks, as users write them after ring-flash-attention's functions; and each with a mistake."""

import itertools
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from tests.golden.ring import Gather
from tests.strangers import attend


def _gathered(group, *tensors):
    """(W, T/W, heads, D)."""
    return [Gather.apply(x[None], group).unflatten(1, (-1, len(x)))[0] for x in tensors]


def _attend(q, k, v, seen, scale):
    return [x[0] for x in attend(q[None], k[None], v[None], scale=scale, bias=seen, wide=q.dtype)]


def _joined(parts):
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs), torch.cat(lses, 1)


def ring(q: Tensor, k, v, cu_seqlens, max_seqlen, causal=False, softmax_scale=None, group=None, chunks=1):
    """Attend where a rank holds one part of every document, and cu_seqlens are the borders of the parts it holds."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = 1 if size == 1 else chunks
    assert max_seqlen == int(cu_seqlens.diff().max())
    k, v = _gathered(group, k, v)
    found = []
    for begin, end in itertools.pairwise(cu_seqlens.tolist()):
        parts = torch.arange((end - begin) * size).chunk(chunks * size)
        places = [torch.cat([parts[r], parts[2 * size - 1 - r]]) if chunks > 1 else parts[r] for r in range(size)]
        seen = places[rank][:, None] >= torch.cat(places) if causal else None
        found.append(_attend(q[begin:end], *(x[:, begin:end].flatten(0, 1) for x in (k, v)), seen, softmax_scale))
    return _joined(found)


def whole(q, k, v, cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded,
          causal=False, softmax_scale=None, cp_group=None, counted=False):  # fmt: skip
    """As TransformerEngine's: a rank is told the borders of all documents, and has chunks r and 2W - 1 - r of each as
    it is padded. counted: the planted fault: keys of the padding are seen."""
    rank, size = dist.get_rank(cp_group), dist.get_world_size(cp_group)
    assert max_seqlen_q == max_seqlen_kv == int(cu_seqlens_q.diff().max())
    k, v = _gathered(cp_group, k, v)
    found, parts = [], 1 if size == 1 else 2
    borders = itertools.pairwise(cu_seqlens_kv_padded.tolist())
    for length, (begin, end) in zip(cu_seqlens_kv.diff().tolist(), borders, strict=True):
        chunks = torch.arange(end - begin).chunk(parts * size)
        places = [torch.cat([chunks[r], chunks[2 * size - 1 - r]]) if size > 1 else chunks[0] for r in range(size)]
        mine, (first, last) = torch.cat(places), (begin // size, end // size)
        seen = (mine < (end - begin if counted else length)).expand(len(places[rank]), -1)
        seen = seen & (places[rank][:, None] >= mine) if causal else seen
        found.append(_attend(q[first:last], *(x[:, first:last].flatten(0, 1) for x in (k, v)), seen, softmax_scale))
    return _joined(found)


whole_padding_is_counted = partial(whole, counted=True)


def whole_without_padding(q, k, v, cu_seqlens, max_seqlen, causal=False, softmax_scale=None, group=None):
    return whole(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, cu_seqlens, cu_seqlens, causal,
                 softmax_scale, group)  # fmt: skip


zigzag = partial(ring, chunks=2)


def llama3(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, heads_k_stride, local_k_slice,
           softmax_scale=None, causal=False, group=None):  # fmt: skip
    """A rank has a slice of the packed tokens, and all keys that its queries see."""
    assert (max_seqlen_q, max_seqlen_k) == tuple(int(x.diff().max()) for x in (cu_seqlens_q, cu_seqlens_k))
    assert k.shape[1] % heads_k_stride == 0
    k, v = (x.flatten(0, 1)[local_k_slice] for x in _gathered(group, k, v))
    found = []
    for (a, b), (c, d) in zip(*map(itertools.pairwise, (cu_seqlens_q.tolist(), cu_seqlens_k.tolist())), strict=True):
        seen = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - b + a) if causal else None
        found.append(_attend(q[a:b], k[c:d], v[c:d], seen, softmax_scale))
    return _joined(found)


def a_border_is_off_by_one_on_rank_one(q, k, v, cu_seqlens, max_seqlen, causal=False, softmax_scale=None, group=None):
    own = cu_seqlens.clone()
    own[1:-1] += dist.get_rank(group) == 1
    return ring(q, k, v, own, int(own.diff().max()), causal, softmax_scale, group)
