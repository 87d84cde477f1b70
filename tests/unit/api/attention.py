"""Attention as a stranger writes it, under any mask, bias, sink and cap, the tensors that tests call it with, and what
is said of a wrong one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy

DTYPES = ("bfloat16", "float16", "float32", "float64")
HEADS = 4


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


def visible(queries: int, keys: int, device: torch.device) -> Tensor:
    """The causal mask by which the last query sees the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None, bias: Tensor | None = None,
    sinks: Tensor | None = None, softcap: float = 0.0, wide: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out (B, S, H, D) and lse (B, H, S). bias: what is added, or a boolean mask; wide: the dtype of all sums, by
    default float32 or wider."""
    wide = wide or wider(q.dtype)
    k, v = (x.to(wide).repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), k) * (scale or q.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias.to(wide)
    if causal:
        scores = scores.masked_fill(~visible(*scores.shape[-2:], q.device), -torch.inf)
    if sinks is not None:  # a logit more, whose value is 0
        scores = torch.cat([scores, sinks.to(wide).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1)[..., : k.shape[1]]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).to(q.dtype), scores.logsumexp(-1)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, softmax_scale: float | None = None) -> Tensor:
    """Return the out of `attend`, without its lse. Users call their kernels of one device with these arguments."""
    return attend(q, k, v, causal=causal, scale=softmax_scale)[0]


def wrong(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True, softmax_scale: float | None = None) -> Tensor:
    """Twice the gradient of v, and out a hundredth too large."""
    return attention(q, k, 2 * v - v.detach(), causal=causal, softmax_scale=softmax_scale) * 1.01


def _fails(entry: Callable[..., object], says: str, /, *given: Any, **how: Any) -> str:
    """Call an assertion that must fail, with a message that the pattern `says` matches; return the message."""
    with pytest.raises(AssertionError, match=says) as caught:
        entry(*given, **how)
    return str(caught.value)


refused = partial(_fails, accuracy.assert_close)
inaccurate = partial(_fails, accuracy.assert_accurate)
unmerged = partial(_fails, accuracy.assert_merge_close)
