"""The numbers of a stack, rounded to the case's dtype: exact inputs to every comparison.

Random ones are drawn on the device itself, as 8B shapes have billions, from the seed by name: a deeper stack begins
with the layers of a shallower one; another kind of device draws other numbers.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.stack import Stack
from accuracy.stack import trained
from accuracy.stack.block import Weights


@dataclass(frozen=True)
class Model:
    """layers: see `accuracy.stack.block`; embedding (V, E), head (E, V), norm (E) or None; words (B, S + 1)."""

    layers: tuple[Weights, ...]
    embedding: Tensor
    head: Tensor
    norm: Tensor | None
    words: Tensor


def model_of(case: Case, stack: Stack) -> Model:
    """The weights and the words of a case's stack, on its device."""
    made = _random(case, stack) if stack.weights == "random" else _trained(case, stack)
    norm = made.norm if stack.norm else None
    return Model(tuple(_changed(layer, stack) for layer in made.layers), made.embedding, made.head, norm, made.words)


def _changed(layer: Weights, stack: Stack) -> Weights:
    """With the stack's gain on query and key, and without norms where it has none."""
    kept = {name: x for name, x in layer.items() if stack.norm or not name.endswith("norm")}
    return {**kept, **{name: kept[name] * stack.gain for name in ("query", "key")}}


def _random(case: Case, stack: Stack) -> Model:
    problem, width, hidden = case.problem, stack.width, stack.feed_forward
    shapes = {
        "query": (width, problem.heads * problem.head_dim),
        "key": (width, problem.heads_kv * problem.head_dim),
        "value": (width, problem.heads_kv * problem.head_dim),
        "output": (problem.heads * problem.head_dim, width),
        **({"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)} if hidden else {}),
    }
    dtype = getattr(torch, case.dtype)

    def normal(name: str, shape: tuple[int, ...], variance: float) -> Tensor:
        return (_normal(f"{name}/{shape}/{case.seed}", shape, case.device) * variance**0.5).to(dtype)

    ones = torch.ones(width, dtype=dtype, device=case.device)
    norms = {"attention_norm": ones, **({"feed_forward_norm": ones} if hidden else {})}
    layers = tuple(
        {**{name: normal(f"{name}/{index}", shape, 1 / shape[0]) for name, shape in shapes.items()}, **norms}
        for index in range(stack.layers)
    )
    embedding = normal("embedding", (stack.vocabulary, width), 1.0)
    head = normal("head", (width, stack.vocabulary), 1 / width)
    words = torch.randint(
        stack.vocabulary, (problem.batch, problem.seqlen + 1), generator=_generator(f"words/{case.seed}", "cpu")
    )
    return Model(layers, embedding, head, ones, words.to(case.device))


def _trained(case: Case, stack: Stack) -> Model:
    given = {name: x.to(getattr(torch, case.dtype)).to(case.device) for name, x in trained.weights().items()}
    stacked = {name.removeprefix("layers."): x for name, x in given.items() if name.startswith("layers.")}
    layers = tuple({name: x[index % trained.LAYERS] for name, x in stacked.items()} for index in range(stack.layers))
    words = trained.words(case.problem.batch, case.problem.seqlen + 1, case.seed).to(case.device)
    return Model(layers, given["embedding"], given["head"], given["norm"], words)


def _normal(key: str, shape: tuple[int, ...], device: str) -> Tensor:
    return torch.randn(shape, generator=_generator(key, device), device=device)


def _generator(key: str, device: str) -> torch.Generator:
    seed = int(hashlib.sha256(key.encode()).hexdigest()[:15], 16)
    return torch.Generator(device=device).manual_seed(seed)
