"""Attention as strangers write it, called as `fn(q, k, v, *, causal, softmax_scale, group)`: `HEALTHY`, `FAULTY`."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.golden import ring as gathered
from tests.slow.foreign.ring import attend, right


@dataclass(frozen=True)
class Foreign:
    """A stranger's function, how it is called, whether it computes in float32 inside; of a faulty one, which tensors
    must be named and may be, which families of hypotheses may be proven, words of the sentence, and settings that
    `diagnose` chooses (free), as the fault shows in some of them alone."""

    fn: Callable[..., Any]
    layout: str = "bshd"
    ranks: tuple[int, ...] = (1,)
    float32: bool = False
    wrong: str = ""
    may: str = ""
    causes: Sequence[str] = ()
    says: str = ""
    free: tuple[str, ...] = ()


def visible(scores: Tensor, first: int = 1, value: float = -torch.inf) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(first), value)


def heads_first(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """(B, H, S, D) of (B, S, H, D), key heads repeated."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    return [x.transpose(1, 2).to(dtype) for x in (q, k, v)]


def eager(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any = None, first: int = 1
) -> tuple[Tensor, Tensor]:
    """Scores and sums in float32, whatever comes; lse in float32."""
    dtype = q.dtype
    q, k, v = heads_first(q, k, v)
    scores = q @ k.mT * softmax_scale
    scores = visible(scores, first) if causal else scores
    return (scores.softmax(-1) @ v).transpose(1, 2).to(dtype), scores.logsumexp(-1)


def eager_out(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return eager(q, k, v, **how)[0]


def eager_sees_one_later(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return eager(q, k, v, first=2, **how)[0]


def eager_lse_to_base_2(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    out, lse = eager(q, k, v, **how)
    return out, lse / math.log(2)


def eager_lse_in_bfloat16(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    out, lse = eager(q, k, v, **how)
    return out, lse.bfloat16()


def softmax_in_float32(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any) -> Tensor:
    """As transformers' eager attention: products in the inputs' dtype, the softmax in float32; (B, H, S, D)."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * softmax_scale
    scores = visible(scores) if causal else scores
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def scores_in_16_bits(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any
) -> tuple[Tensor, Tensor]:
    """Scores in the inputs' dtype, their softmax and lse in float32; hidden scores are -1e30."""
    q, k, v = heads_first(q, k, v, q.dtype)
    scores = (q @ k.mT).float() * softmax_scale
    scores = visible(scores, value=-1e30) if causal else scores
    return (scores.softmax(-1).to(q.dtype) @ v).transpose(1, 2), scores.logsumexp(-1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)


def varlen(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, max_seqlen: int, **how: Any) -> Tensor:
    """Sequences one behind another, (T, H, D)."""
    sequences = (slice(*each) for each in itertools.pairwise(cu_seqlens.tolist()))
    return torch.cat([of_one(*(x[each] for x in (q, k, v)), **how) for each in sequences])


def of_one(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return sdpa(*(x.transpose(0, 1)[None] for x in (q, k, v)), **how)[0].transpose(0, 1)


def borders_ignored(q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, max_seqlen: int, **how: Any) -> Tensor:
    return of_one(q, k, v, **how)


def forward_only(q: Tensor, k: Tensor, v: Tensor, *, kept: Any = 1.0, **how: Any) -> Tensor:
    """Through numpy: nothing of it has a gradient."""
    q64, k64, v64 = (torch.from_numpy(x.detach().double().numpy()) for x in (q, k, v))
    k64, v64 = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k64, v64 * kept))
    scores = torch.einsum("bqhd,bkhd->bhqk", q64, k64) * how["softmax_scale"]
    scores = visible(scores) if how["causal"] else scores
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v64).to(q.dtype)


def forward_only_without_a_value(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    lost = torch.arange(k.shape[1]) == 7 % k.shape[1]
    return forward_only(q, k, v, kept=~lost[:, None, None], **how)


def asks_its_group(q: Tensor, k: Tensor, v: Tensor, *, group: Any, **how: Any) -> Tensor:
    assert (dist.get_rank(group), dist.get_world_size(group)) == (0, 1)
    dist.all_reduce(torch.ones(1), group=group)
    return eager(q, k, v, group=group, **how)[0]


HEALTHY = {
    "eager": Foreign(eager, float32=True),
    "eager_out": Foreign(eager_out, float32=True),
    "softmax_in_float32": Foreign(softmax_in_float32, "bhsd", float32=True),
    "scores_in_16_bits": Foreign(scores_in_16_bits, float32=True),
    "sdpa": Foreign(sdpa, "bhsd"),
    "varlen": Foreign(varlen, "varlen"),
    "forward_only": Foreign(forward_only),
    "gathered": Foreign(gathered.ring, ranks=(1, 2, 4), float32=True),
    "ring": Foreign(right, ranks=(1, 4)),
}


def second_of_batch(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    return attend(q, k[:1].expand_as(k), v[:1].expand_as(v), **how)  # a batch stride of 0


EVERYTHING, GRADIENTS, BLOCKS = "out lse dq dk dv", "dq dk dv", ("blocks", "pairs")
FAULTY = {
    "eager_lse_in_bfloat16": Foreign(eager_lse_in_bfloat16, wrong="lse", causes=("cast",)),
    "forward_only_without_a_value": Foreign(forward_only_without_a_value, wrong="out", causes=BLOCKS),
    "documents_ignored": Foreign(
        borders_ignored, "varlen", wrong="out", may=GRADIENTS, causes=("mask", *BLOCKS), says="borders of"
    ),
    "odd_size": Foreign(
        partial(attend, lost=lambda size, length: size % 2), ranks=(1, 4), wrong=EVERYTHING, causes=BLOCKS,
        says="with 3 ranks (right with 1, 2 and 4)", free=("world_size",),
    ),
    "long": Foreign(
        partial(attend, lost=lambda size, length: length * size > 2048), ranks=(1, 4), wrong=EVERYTHING, causes=BLOCKS,
        says="only with seqlen=2304", free=("seqlen",),
    ),
    "second_of_batch": Foreign(second_of_batch, wrong=EVERYTHING, causes=("shard",), says="only with batch=2"),
}  # fmt: skip
