"""Attention as strangers write it, healthy and each with a fault of one line: `HEALTHY`, `FAULTY`, by name.

Every function is called as `fn(q, k, v, *, causal, softmax_scale, group)`. `Foreign` says how each takes its tensors,
on how many ranks it runs, and whether it computes in float32 inside.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.foreign import gathered, my_ring, ring


@dataclass(frozen=True)
class Foreign:
    """fn; layout: how it takes its tensors; ranks: on which it runs; float32: whether it computes in float32 inside;
    wrong: of a faulty one, the first tensor that is wrong."""

    fn: Callable[..., Any]
    layout: str = "bshd"
    ranks: tuple[int, ...] = (1,)
    float32: bool = False
    wrong: str = ""


def visible(scores: Tensor, first: int = 1) -> Tensor:
    return scores.masked_fill(
        torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(first), -torch.inf
    )


def eager(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any, first: int = 1
) -> tuple[Tensor, Tensor]:
    """Scores and sums in float32, whatever comes; lse in float32."""
    dtype = q.dtype
    k, v = (x.float().repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * softmax_scale
    scores = visible(scores, first) if causal else scores
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).to(dtype), scores.logsumexp(-1)


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
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3)).float() * softmax_scale
    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -1e30) if causal else scores
    return (scores.softmax(-1).to(q.dtype) @ v).transpose(1, 2), scores.logsumexp(-1)


def eager_hides_the_diagonal(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    """The first token, which would see nothing, sees itself."""
    if not how["causal"]:
        return eager(q, k, v, **how)[0]
    return torch.cat([eager(q[:, :1], k[:, :1], v[:, :1], **how)[0], eager(q, k, v, first=0, **how)[0][:, 1:]], 1)


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)


def sdpa_as_transformers(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any) -> Tensor:
    """One token needs no mask; so its dq and dk, which are 0, are rounded as those of any softmax."""
    causal = causal and q.shape[2] > 1
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)


def sdpa_other_heads(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any) -> Tensor:
    k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))  # not repeat_interleave
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale)


def varlen(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens: Tensor, max_seqlen: int, causal: bool, softmax_scale: float,
    group: Any,
) -> Tensor:  # fmt: skip
    """Sequences one behind another, (T, H, D)."""
    whole = []
    for begin, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        parts = (x[begin:end].transpose(0, 1)[None] for x in (q, k, v))
        whole.append(sdpa(*parts, causal=causal, softmax_scale=softmax_scale, group=group)[0].transpose(0, 1))
    return torch.cat(whole)


def varlen_default_scale(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, **how: Any) -> Tensor:
    return varlen(q, k, v, softmax_scale=q.shape[-1] ** -0.5, **how)


def through_numpy(q: Tensor, k: Tensor, v: Tensor, *, keys: int = 0, **how: Any) -> Tensor:
    """Forward only: nothing of it has a gradient."""
    with torch.no_grad():
        kept = torch.ones(k.shape[1]).index_fill(0, torch.tensor([keys % k.shape[1]] if keys else []).long(), 0.0)
        q, k, v = (torch.from_numpy(x.detach().double().numpy()) for x in (q, k, v * kept[:, None, None].to(v)))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2))
        scores = scores * how["softmax_scale"]
        scores = visible(scores) if how["causal"] else scores
        out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.repeat_interleave(q.shape[2] // v.shape[2], 2))
    return out


def forward_only(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return through_numpy(q, k, v, **how).to(q.dtype)


def forward_only_without_a_value(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return through_numpy(q, k, v, keys=7, **how).to(q.dtype)


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
    "sdpa_as_transformers": Foreign(sdpa_as_transformers, "bhsd"),
    "varlen": Foreign(varlen, "varlen"),
    "forward_only": Foreign(forward_only),
    "asks_its_group": Foreign(asks_its_group, float32=True),
    "gathered": Foreign(gathered.attend, ranks=(1, 2, 4)),
    "ring": Foreign(ring.attend, ranks=(1, 4)),
    "my_ring": Foreign(my_ring.ring_good, ranks=(1, 2, 4), float32=True),
}
FAULTY = {
    "eager_sees_one_later": Foreign(eager_sees_one_later, wrong="out"),
    "eager_hides_the_diagonal": Foreign(eager_hides_the_diagonal, wrong="out"),
    "eager_lse_to_base_2": Foreign(eager_lse_to_base_2, wrong="lse"),
    "eager_lse_in_bfloat16": Foreign(eager_lse_in_bfloat16, wrong="lse"),
    "sdpa_other_heads": Foreign(sdpa_other_heads, "bhsd", wrong="out"),
    "varlen_default_scale": Foreign(varlen_default_scale, "varlen", wrong="out"),
    "forward_only_without_a_value": Foreign(forward_only_without_a_value, wrong="out"),
    "gathered_keeps_its_own_gradient": Foreign(gathered.keeps_its_own_gradient, ranks=(1, 2, 4), wrong="dk"),
}
