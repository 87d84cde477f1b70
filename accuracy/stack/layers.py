"""A stack's forward and backward, layer by layer: each quantity is handed out as soon as it is there and forgotten.

Kept are the layers' inputs, so memory grows with the depth by (B, S, E) a layer; a layer is computed again in the
backward, bit for bit as in the forward, as activation checkpointing does in training.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from accuracy.core.stack import Stack
from accuracy.stack.attention import Halves, known_to_autograd
from accuracy.stack.block import Weights, accumulation, block, loss_of
from accuracy.stack.weights import Model

DIFFERENTIATED = ("query", "key", "value", "output")  # weights whose gradients are compared


class Quantity(NamedTuple):
    """x: the residual stream after a layer, dx: the gradient of the stream before it, d_NAME: of a weight; loss."""

    layer: int  # 1 to L; the loss has L
    tensor: str
    value: Tensor


def quantities(model: Model, stack: Stack, halves: Halves, dtype: torch.dtype, head_dim: int) -> Iterator[Quantity]:
    """All quantities of a stack in `dtype`: x of layer 1 to L, the loss, then dx and the weights' of layer L to 1."""
    attention = known_to_autograd(halves)
    stream = accumulation(dtype) if stack.residual == "accumulate" else dtype

    def layer_of(x: Tensor, weights: Weights) -> Tensor:
        return block(x, weights, attention, head_dim, stack.residual != "none")

    x = model.embedding[model.words[:, :-1]].to(stream)
    inputs = []
    for layer, weights in enumerate(model.layers, 1):
        inputs.append(x)
        with torch.no_grad():
            x = layer_of(x, _in(weights, dtype))
        yield Quantity(layer, "x", x)
    x = x.detach().requires_grad_()
    gain = None if model.norm is None else model.norm.to(dtype)
    loss = loss_of(x, gain, model.head.to(dtype), model.words[:, 1:])
    yield Quantity(len(model.layers), "loss", loss.detach())
    (gradient,) = torch.autograd.grad(loss, [x])
    for layer in range(len(model.layers), 0, -1):
        x, weights = inputs.pop().detach().requires_grad_(), _in(model.layers[layer - 1], dtype)
        chosen = [weights[name].requires_grad_() for name in DIFFERENTIATED]
        gradient, *found = torch.autograd.grad(layer_of(x, weights), [x, *chosen], gradient)
        yield Quantity(layer, "dx", gradient)
        for name, each in zip(DIFFERENTIATED, found, strict=True):
            yield Quantity(layer, f"d_{name}", each)


def _in(weights: Weights, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.detach().to(dtype) for name, x in weights.items()}
