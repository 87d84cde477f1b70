"""Faults put around a kernel: what its caller, or a layer of the kernel's own, gets wrong. Each keeps the signature."""

from typing import Any

import torch
from torch import Tensor

from experiments.zoo.kernels import Attention


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 1.004


def batch_leak(fn: Attention) -> Attention:
    """Every sequence sees the first one's keys."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        return fn(q, k[:1].expand_as(k).contiguous(), v, causal=causal, softmax_scale=softmax_scale)

    return attention


def odd_length(fn: Attention) -> Attention:
    """The last key of an odd length is its neighbour's."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        if k.shape[1] % 2 and k.shape[1] > 1:
            k = torch.cat([k[:, :-1], k[:, -2:-1]], 1)
        return fn(q, k, v, causal=causal, softmax_scale=softmax_scale)

    return attention


def long(fn: Attention) -> Attention:
    """Beyond 1,024 tokens the first key is its neighbour's."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        if k.shape[1] > 1024:
            k = torch.cat([k[:, 1:2], k[:, 1:]], 1)
        return fn(q, k, v, causal=causal, softmax_scale=softmax_scale)

    return attention


def race(fn: Attention) -> Attention:
    """One call in a hundred returns 1.5 times out."""
    calls = [0]

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        calls[0] += 1
        found = fn(q, k, v, causal=causal, softmax_scale=softmax_scale)
        if calls[0] % 100 != 77:
            return found
        return (found[0] * 1.5, found[1]) if isinstance(found, tuple) else found * 1.5

    return attention


def scale(fn: Attention) -> Attention:
    """The softmax's scale is 1.01 times what it should be."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        return fn(q, k, v, causal=causal, softmax_scale=1.01 * softmax_scale)

    return attention


def gradient(fn: Attention) -> Attention:
    """dk is 1.004 times what it should be."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        return fn(q, _Scaled.apply(k), v, causal=causal, softmax_scale=softmax_scale)

    return attention


def window(fn: Attention) -> Attention:
    """A window sees one key less than it should."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float, window_size: Any = (-1, -1),
        softcap: float = 0.0,
    ) -> Any:  # fmt: skip
        less = tuple(max(0, each - 1) if each > 0 else each for each in window_size)
        return fn(q, k, v, causal=causal, softmax_scale=softmax_scale, window_size=less, softcap=softcap)

    return attention


def lse(fn: Attention) -> Attention:
    """Two halves of the keys are joined by an lse that is kept in bfloat16."""

    def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Any:
        half = k.shape[1] // 2
        if causal or not half:
            return fn(q, k, v, causal=causal, softmax_scale=softmax_scale)
        how = {"causal": False, "softmax_scale": softmax_scale}
        (a, la), (b, lb) = (fn(q, k[:, at], v[:, at], **how) for at in (slice(half), slice(half, None)))
        share = torch.sigmoid(la.bfloat16().float() - lb.bfloat16().float()).transpose(1, 2)[..., None]
        return (share * a.float() + (1 - share) * b.float()).to(q.dtype)

    return attention


TENSORS = {"batch_leak": {"out"}, "odd_length": {"out"}, "long": {"out"}, "race": {"out"}, "scale": {"out"},
           "gradient": {"dk"}, "window": {"out"}, "lse": {"out"}}  # fmt: skip
"""The tensors that each makes wrong first."""
FAULTS = {each.__name__: each for each in (batch_leak, odd_length, long, race, scale, gradient, window, lse)}
OF = {"window": ("flash-attn 2, window and softcap",), "lse": ("flash-attn 2",)}
"""Kernels that a fault can be put around, where not all that are `PLANTED_IN`."""
PLANTED_IN = (
    "flash-attn 2", "flash-attn 2, varlen", "torch flash", "torch efficient", "torch cudnn", "torch math",
    "torch by hand, TF32", "transformers eager", "fla parallel_attn",
)  # fmt: skip
