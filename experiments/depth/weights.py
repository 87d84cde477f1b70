"""The numbers of a stack, rounded to the case's dtype: exact inputs to every comparison. Random ones are drawn on the
device itself, as 8B shapes have billions, from the seed by name: a deeper stack begins with the layers of a shallower
one."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from accuracy.core.case import Case
from experiments.depth.plan import Stack

DIGEST = "d4b0729d2fc3f7c7f867b5d83c2f274b12df002109e50b183e01bfb49ed9f314"
"""SHA-256 of the file: it decides numbers as code does."""
FILE = Path(__file__).with_name("trained.pt")
LAYERS = 8
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Model:
    """layers: see `experiments.depth.layers`; embedding (V, E), head (E, V), norm (E) or None; words (B, S + 1)."""

    layers: tuple[Weights, ...]
    embedding: Tensor
    head: Tensor
    norm: Tensor | None
    words: Tensor


def model_of(case: Case, stack: Stack) -> Model:
    """Return the weights and the words of a case's stack, on its device."""
    made = _random(case, stack) if stack.weights == "random" else _trained(case, stack)
    kept = [{name: x for name, x in each.items() if stack.norm or not name.endswith("norm")} for each in made.layers]
    layers = tuple({**each, **{name: each[name] * stack.gain for name in ("query", "key")}} for each in kept)
    return replace(made, layers=layers, norm=made.norm if stack.norm else None)


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
        generator = _generator(f"{name}/{shape}/{case.seed}", case.device)
        return (torch.randn(shape, generator=generator, device=case.device) * variance**0.5).to(dtype)

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
    dtype, content = getattr(torch, case.dtype), _content()
    given = {name: x.to(dtype).to(case.device) for name, x in content.items() if name != "text"}
    stacked = {name.removeprefix("layers."): x for name, x in given.items() if name.startswith("layers.")}
    layers = tuple({name: x[index % LAYERS] for name, x in stacked.items()} for index in range(stack.layers))
    words = _words(case.problem.batch, case.problem.seqlen + 1, case.seed).to(case.device)
    return Model(layers, given["embedding"], given["head"], given["norm"], words)


def _generator(key: str, device: str) -> torch.Generator:
    seed = int(hashlib.sha256(key.encode()).hexdigest()[:15], 16)
    return torch.Generator(device=device).manual_seed(seed)


@cache
def _content() -> dict[str, Tensor]:
    """bfloat16: `layers.NAME` (LAYERS, ...) as in `Model.layers`, `embedding`, `head`, `norm`; and `text`."""
    if hashlib.sha256(FILE.read_bytes()).hexdigest() != DIGEST:
        raise RuntimeError(f"{FILE.name} is damaged; what made it is `git show 148adff2:experiments/depth/train.py`")
    content: dict[str, Tensor] = torch.load(FILE, weights_only=True)
    return content


def _words(batch: int, length: int, seed: int) -> Tensor:
    """int64 (B, length) out of the text kept from the training, another place for another seed; repeated if short."""
    text = _content()["text"].long()
    stride = max(1, len(text) // 8)  # eight seeds have starts of their own
    starts = [(seed * stride + item * length) % len(text) for item in range(batch)]
    place = torch.arange(length)
    return torch.stack([text[(start + place) % len(text)] for start in starts])
