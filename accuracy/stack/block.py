"""A block and a model's ends as plain functions, in the dtype of what they are given.

What a mixed-precision training run rounds is rounded here: products give the working dtype (sums inside of them are
the library's, float32 or finer), RMSNorm's statistics, RoPE and the loss are computed in the accumulation dtype, as
Llama's published code does. In float64 everything is float64.

Shapes: x (B, S, E); weights: `query` (E, H D), `key`, `value` (E, Hk D), `output` (H D, E), `gate`, `up` (E, F), `down`
(F, E), `attention_norm`, `feed_forward_norm` (E).
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-5  # of RMSNorm: Llama's
ROPE_BASE = 500000.0  # Llama 3's

Weights = Mapping[str, Tensor]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q (B, S, H, D), k, v (B, S, Hk, D) -> out (B, S, H, D), known to autograd."""


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 in a float64 stack."""
    return torch.promote_types(dtype, torch.float32)


def block(x: Tensor, weights: Weights, attention: Attention, head_dim: int, residual: bool = True) -> Tensor:
    """One block: x (B, S, E) in the residual stream's dtype -> the same. Left out: norms and feed-forward without
    weights, and the sum without `residual`."""
    inner = weights["query"].dtype
    update = _attend(normalised(x, weights.get("attention_norm"), inner), weights, attention, head_dim)
    x = _joined(x, update, residual)
    if "gate" not in weights:
        return x
    hidden = normalised(x, weights.get("feed_forward_norm"), inner)
    update = (F.silu(hidden @ weights["gate"]) * (hidden @ weights["up"])) @ weights["down"]
    return _joined(x, update, residual)


def _joined(x: Tensor, update: Tensor, residual: bool) -> Tensor:
    return x + update.to(x.dtype) if residual else update.to(x.dtype)


def _attend(hidden: Tensor, weights: Weights, attention: Attention, head_dim: int) -> Tensor:
    q, k, v = (
        (hidden @ weights[name]).unflatten(-1, (-1, head_dim)).contiguous() for name in ("query", "key", "value")
    )
    return attention(rotated(q), rotated(k), v).flatten(2) @ weights["output"]


def normalised(x: Tensor, gain: Tensor | None, dtype: torch.dtype) -> Tensor:
    """RMSNorm (Zhang & Sennrich 2019) of (..., E), rounded once to `dtype`, then times the gain; x without one."""
    if gain is None:
        return x.to(dtype)
    wide = x.to(accumulation(dtype))
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
    return scaled.to(dtype) * gain


def rotated(x: Tensor) -> Tensor:
    """RoPE (Su et al. 2021) of (B, S, heads, D), D even: pairs (i, i + D / 2), as transformers runs Llama.

    Angles in float64, so that every dtype rotates by the same."""
    half = x.shape[-1] // 2
    place = torch.arange(x.shape[1], dtype=torch.float64, device=x.device)
    angle = place[:, None] * ROPE_BASE ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    wide = accumulation(x.dtype)
    cosine, sine = (each.to(wide)[:, None, :] for each in (angle.cos(), angle.sin()))
    first, second = x.to(wide).split(half, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def loss_of(x: Tensor, gain: Tensor | None, head: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next words: x (B, S, E), head (E, V), targets (B, S); in the accumulation dtype."""
    logits = (normalised(x, gain, head.dtype) @ head).to(accumulation(head.dtype))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
