"""Attention as a stranger writes it, under any mask, bias, sink and cap and in any arithmetic, the tensors that tests
call it with, and what is said of a wrong one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.live.tensor_core import rounded

DTYPES = ("bfloat16", "float16", "float32", "float64")
HEADS = 4
Product = Callable[[Tensor, Tensor], Tensor]


def tensors(
    dtype: str = "float32", queries: int = 40, keys: int = 56, *, batch: int = 2, heads_kv: int = 2, dim: int = 16,
    seed: int = 0, device: str = "cpu",
) -> list[Tensor]:  # fmt: skip
    """q, k, v, dout of 4 query heads, (B, S, H, D)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((queries, HEADS), (keys, heads_kv), (keys, heads_kv), (queries, HEADS))
    drawn = [torch.randn(batch, size, heads, dim, generator=generator) for size, heads in shapes]
    return [x.to(device, getattr(torch, dtype)) for x in drawn]


def wider(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def visible(scores: Tensor, late: int = 0, value: float = -torch.inf) -> Tensor:
    """Scores under the causal mask by which the last query sees the last key; late: or so many later ones."""
    queries, keys = scores.shape[-2:]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(keys - queries + late)
    return scores.masked_fill(~seen, value)


def heads_first(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """(B, H, S, D) of (B, S, H, D), key heads repeated, so that their gradients are added in that dtype."""
    k, v = (x.to(dtype).repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    return [x.transpose(1, 2) for x in (q.to(dtype), k, v)]


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None, bias: Tensor | None = None,
    sinks: Tensor | None = None, softcap: float = 0.0, wide: torch.dtype | None = None,
    soft: torch.dtype | None = None, product: Product = torch.matmul,
    change: Callable[[Tensor], Tensor] = lambda scores: scores, late: int = 0, hidden: float = -torch.inf,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out (B, S, H, D) and lse (B, H, S). bias: what is added, or a boolean mask; wide: the dtype of all sums, by
    default float32 or wider; soft: of the softmax alone; product: how products are computed; change: of the scores
    before a mask; late, hidden: see `visible`."""
    dtype, wide = q.dtype, wide or wider(q.dtype)
    scale = scale or q.shape[-1] ** -0.5
    q, k, v = heads_first(q, k, v, wide)
    scores = (product(q, k.mT) * scale).to(soft or wide)
    scores = change(softcap * torch.tanh(scores / softcap) if softcap else scores)
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias.to(wide)
    if causal:
        scores = visible(scores, late, hidden)
    if sinks is not None:  # a logit more, whose value is 0
        scores = torch.cat([scores, sinks.to(wide).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)[..., : k.shape[2]].to(wide)
    return product(weights, v).transpose(1, 2).to(dtype), scores.logsumexp(-1)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, softmax_scale: float | None = None) -> Tensor:
    """Return the out of `attend`, without its lse. Users call their kernels of one device with these arguments."""
    return attend(q, k, v, causal=causal, scale=softmax_scale)[0]


def wrong(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, softmax_scale: float | None = None) -> Tensor:
    """Twice the gradient of v, and out a hundredth too large."""
    return attention(q, k, 2 * v - v.detach(), causal=causal, softmax_scale=softmax_scale) * 1.01


class Mixed(torch.autograd.Function):
    """A product by one function, and both of its backward by another."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, ahead: Product, back: Product) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.back = back
        return ahead(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b = ctx.saved_tensors
        return ctx.back(gradient, b.mT), ctx.back(a.mT, gradient), None, None


def tf32(a: Tensor, b: Tensor, to: str = "tf32") -> Tensor:
    return rounded(a, to) @ rounded(b, to)


def tf32_cut(a: Tensor, b: Tensor) -> Tensor:
    return tf32(a, b, "tf32_cut")


def split_16(a: Tensor, b: Tensor) -> Tensor:
    """Three products of bfloat16 parts."""
    high_a, high_b = a.bfloat16().float(), b.bfloat16().float()
    low_a, low_b = (a - high_a).bfloat16().float(), (b - high_b).bfloat16().float()
    return high_a @ high_b + (high_a @ low_b + low_a @ high_b)


def _fails(entry: Callable[..., object], says: str, /, *given: Any, **how: Any) -> str:
    """Call an assertion that must fail, with a message that the pattern `says` matches; return the message."""
    with pytest.raises(AssertionError, match=says) as caught:
        entry(*given, **how)
    return str(caught.value)


refused = partial(_fails, accuracy.assert_close)
inaccurate = partial(_fails, accuracy.assert_accurate)
unmerged = partial(_fails, accuracy.assert_merge_close)
