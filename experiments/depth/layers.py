"""A stack's forward and backward, layer by layer: each quantity is handed out as soon as it is there and forgotten.

Only the layers' inputs are kept; a layer is computed again in the backward, bit for bit as in the forward.
Rounded as in mixed-precision training: products give the working dtype (their sums are the library's); RMSNorm's
statistics, RoPE and the loss are in the accumulation dtype, as in Llama's published code. In float64 all is float64.

Shapes: x (B, S, E); weights: `query` (E, H D), `key`, `value` (E, Hk D), `output` (H D, E), `gate`, `up` (E, F), `down`
(F, E), `attention_norm`, `feed_forward_norm` (E).
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from experiments.depth.attention import Attention, Halves, known_to_autograd
from experiments.depth.plan import Stack
from experiments.depth.weights import Model, Weights

EPSILON = 1e-5  # of RMSNorm: Llama's
ROPE_BASE = 500000.0  # Llama 3's
DIFFERENTIATED = ("query", "key", "value", "output")  # weights whose gradients are compared


class Quantity(NamedTuple):
    """x: the residual stream after a layer, dx: the gradient of the stream before it, d_NAME: of a weight; loss."""

    layer: int  # 1 to L; the loss has L
    tensor: str
    value: Tensor


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 in a float64 stack."""
    return torch.promote_types(dtype, torch.float32)


def block(x: Tensor, weights: Weights, attention: Attention, head_dim: int, residual: bool = True) -> Tensor:
    """One block: x (B, S, E) in the residual stream's dtype -> the same. Left out: norms and feed-forward without
    weights, and the sum without `residual`."""
    inner = weights["query"].dtype
    hidden = normalised(x, weights.get("attention_norm"), inner)
    q, k, v = ((hidden @ weights[name]).unflatten(-1, (-1, head_dim)).contiguous() for name in DIFFERENTIATED[:3])
    x = _joined(x, attention(rotated(q), rotated(k), v).flatten(2) @ weights["output"], residual)
    if "gate" not in weights:
        return x
    hidden = normalised(x, weights.get("feed_forward_norm"), inner)
    update = (F.silu(hidden @ weights["gate"]) * (hidden @ weights["up"])) @ weights["down"]
    return _joined(x, update, residual)


def _joined(x: Tensor, update: Tensor, residual: bool) -> Tensor:
    return x + update.to(x.dtype) if residual else update.to(x.dtype)


def normalised(x: Tensor, gain: Tensor | None, dtype: torch.dtype) -> Tensor:
    """RMSNorm (Zhang & Sennrich 2019) of (..., E), rounded once to `dtype`, then times the gain; x without one."""
    if gain is None:
        return x.to(dtype)
    wide = x.to(accumulation(dtype))
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
    return scaled.to(dtype) * gain


def rotated(x: Tensor) -> Tensor:
    """RoPE (Su et al. 2021) of (B, S, heads, D), D even: pairs (i, i + D / 2), as transformers runs Llama. Angles in
    float64, so that every dtype rotates by the same."""
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


def formats(stack: Stack, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """Of a stack in `dtype`: of the residual stream, and of weights and products."""
    wide = accumulation(dtype)
    return (wide if stack.residual in ("accumulate", "all") else dtype), (wide if stack.residual == "all" else dtype)


def rounding(attention: Attention, dtype: torch.dtype, working: torch.dtype) -> Attention:
    """Return an attention in `dtype` amid a stack in `working`: q, k, v and dout are rounded on their way in."""
    if dtype == working:
        return attention
    return lambda q, k, v: attention(q.to(dtype), k.to(dtype), v.to(dtype)).to(working)


def quantities(model: Model, stack: Stack, halves: Halves, dtype: torch.dtype, head_dim: int) -> Iterator[Quantity]:
    """Yield all quantities of a stack in `dtype`: x of layer 1 to L, the loss, then dx and the weights' of layer L to
    1."""
    stream, working = formats(stack, dtype)

    def layer_of(x: Tensor, weights: Weights) -> Tensor:
        attention = rounding(known_to_autograd(halves), dtype, working)
        return block(x, weights, attention, head_dim, stack.residual != "none")

    x = model.embedding[model.words[:, :-1]].to(stream)
    inputs = []
    for layer, weights in enumerate(model.layers, 1):
        inputs.append(x)
        with torch.no_grad():
            x = layer_of(x, _in(weights, working))
        yield Quantity(layer, "x", x)
    x = x.detach().requires_grad_()
    gain = None if model.norm is None else model.norm.to(working)
    loss = loss_of(x, gain, model.head.to(working), model.words[:, 1:])
    yield Quantity(len(model.layers), "loss", loss.detach())
    (gradient,) = torch.autograd.grad(loss, [x])
    for layer in range(len(model.layers), 0, -1):
        x, weights = inputs.pop().detach().requires_grad_(), _in(model.layers[layer - 1], working)
        chosen = [weights[name].requires_grad_() for name in DIFFERENTIATED]
        gradient, *found = torch.autograd.grad(layer_of(x, weights), [x, *chosen], gradient)
        yield Quantity(layer, "dx", gradient)
        for name, each in zip(DIFFERENTIATED, found, strict=True):
            yield Quantity(layer, f"d_{name}", each)


def _in(weights: Weights, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.detach().to(dtype) for name, x in weights.items()}
