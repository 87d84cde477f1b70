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
from tests.slow.foreign import ring
from tests.strangers import attend


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


def eager(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any = None, late: int = 0
) -> tuple[Tensor, Tensor]:
    """Scores and sums in float32, whatever comes; lse in float32."""
    return attend(q, k, v, causal=causal, scale=softmax_scale, wide=torch.float32, late=late)


def eager_out(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return eager(q, k, v, **how)[0]


def eager_sees_one_later(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return eager(q, k, v, late=1, **how)[0]


def eager_lse_to_base_2(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    out, lse = eager(q, k, v, **how)
    return out, lse / math.log(2)


def eager_lse_in_bfloat16(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    out, lse = eager(q, k, v, **how)
    return out, lse.bfloat16()


def softmax_in_float32(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any
) -> tuple[Tensor, Tensor]:
    """As transformers' eager attention: products in the inputs' dtype, the softmax in float32; hidden scores are large
    numbers; (B, H, S, D). With its lse."""
    how = {"wide": q.dtype, "soft": torch.float32, "hidden": -1e30}
    out, lse = attend(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal, scale=softmax_scale, **how)
    return out.transpose(1, 2), lse


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, group: Any) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)


SCALES: dict[Any, float] = {}


def of_first_scale(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """As a graph with the scale baked in, whose key has shapes only (flashinfer #4014)."""
    scale = SCALES.setdefault((q.shape, k.shape, q.dtype, causal), softmax_scale)
    return eager(q, k, v, causal=causal, softmax_scale=scale, group=None)


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
    return attend(q64, k64, v64 * kept, causal=how["causal"], scale=how["softmax_scale"])[0].to(q.dtype)


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
    "sdpa": Foreign(sdpa, "bhsd"),
    "varlen": Foreign(varlen, "varlen"),
    "forward_only": Foreign(forward_only),
    "gathered": Foreign(gathered.ring, ranks=(1, 2, 4), float32=True),
    "ring": Foreign(ring.right, ranks=(1, 4)),
}


def second_of_batch(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    return ring.attend(q, k[:1].expand_as(k), v[:1].expand_as(v), **how)  # a batch stride of 0


EVERYTHING, GRADIENTS, BLOCKS = "out lse dq dk dv", "dq dk dv", ("blocks", "pairs")
FAULTY = {
    "eager_lse_in_bfloat16": Foreign(eager_lse_in_bfloat16, wrong="lse", causes=("cast",)),
    "forward_only_without_a_value": Foreign(forward_only_without_a_value, wrong="out", causes=BLOCKS),
    "documents_ignored": Foreign(
        borders_ignored, "varlen", wrong="out", may=GRADIENTS, causes=("mask", *BLOCKS), says="borders of"
    ),
    "odd_size": Foreign(
        partial(ring.attend, lost=lambda size, length: size % 2), ranks=(1, 4), wrong=EVERYTHING, causes=BLOCKS,
        says="with 3 ranks (right with 1, 2 and 4)", free=("world_size",),
    ),
    "long": Foreign(
        partial(ring.attend, lost=lambda size, length: length * size > 2048), ranks=(1, 4), wrong=EVERYTHING,
        causes=BLOCKS, says="only with seqlen=2304", free=("seqlen",),
    ),
    "second_of_batch": Foreign(second_of_batch, wrong=EVERYTHING, causes=("shard",), says="only with batch=2"),
}  # fmt: skip
