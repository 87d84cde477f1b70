"""A small language model of bytes, in Llama's blocks, that two experiments train: weights, loss, gradient."""

import math
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from experiments.depth.attention import Attention
from experiments.depth.layers import block, loss_of

Weights = dict[str, Tensor]
"""`embedding` (256, E), `head` (E, 256), `norm` (E), and `LAYER.NAME` as in `experiments.depth.layers`."""


def joined(files: Iterable[Path]) -> Tensor:
    """uint8: the content of files, one after another."""
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)


def beginning(layers: int, heads: int, heads_kv: int, head_dim: int, device: str) -> Weights:
    """Return the weights before training: variance 1 / fan-in, less for what joins the residual stream."""
    width, keys = heads * head_dim, heads_kv * head_dim
    shapes = {"query": (width, width), "key": (width, keys), "value": (width, keys), "output": (width, width)}
    shapes |= {"gate": (width, 4 * width), "up": (width, 4 * width), "down": (4 * width, width)}
    weights = {"embedding": torch.randn(256, width), "head": torch.randn(width, 256) / width**0.5}
    weights["norm"] = torch.ones(width)
    for layer, (name, shape) in product(range(layers), shapes.items()):
        less = math.sqrt(2 * layers) if name in ("output", "down") else 1.0
        weights[f"{layer}.{name}"] = torch.randn(shape) / shape[0] ** 0.5 / less
    for layer, name in product(range(layers), ("attention_norm", "feed_forward_norm")):
        weights[f"{layer}.{name}"] = torch.ones(width)
    return {name: x.to(device).requires_grad_() for name, x in weights.items()}


def loss(weights: Weights, words: Tensor, attention: Attention, head_dim: int) -> Tensor:
    """Return the mean loss, in nats a byte, of predicting each byte of words (B, S + 1) from those before it."""
    x = weights["embedding"][words[:, :-1]]
    for layer in range(sum(name.endswith(".query") for name in weights)):
        own = {name.partition(".")[2]: x for name, x in weights.items() if name.startswith(f"{layer}.")}
        x = block(x, own, attention, head_dim)
    return loss_of(x, weights["norm"], weights["head"], words[:, 1:])


def gradient(weights: Weights, words: Tensor, attention: Attention, head_dim: int) -> Tensor:
    """Return the gradient of the loss by all weights, as one vector."""
    found = torch.autograd.grad(loss(weights, words, attention, head_dim), list(weights.values()))
    return torch.cat([x.flatten() for x in found])
