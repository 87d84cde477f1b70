"""A result read in another layout: heads and tokens exchanged, heads and dims mixed."""

from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.explain.hypothesis.attention import Stage
from accuracy.explain.hypothesis.base import Asked, Hypothesis, after, altered, moving


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """On the whole tensor, and on each rank's shard."""
    yield from _of_dims(asked)
    moves: dict[str, Stage] = {
        "(B, S, H, ...) read as (B, H, S, ...)": lambda x: (
            x.contiguous().view(x.shape[0], x.shape[2], x.shape[1], *x.shape[3:]).transpose(1, 2)
        ),
        "(B, H, S, ...) read as (B, S, H, ...)": lambda x: x.transpose(1, 2).contiguous().view(x.shape),
        "(..., H, D) read as (..., D, H)": lambda x: x if x.dim() < 4 else x.transpose(2, 3).contiguous().view(x.shape),
        "(B, S, ...) read as (S, B, ...)": lambda x: x.transpose(0, 1).contiguous().view(x.shape),
    }
    for base, predicts in asked.finals():
        for word, move in moves.items():
            for place, on in (("", move), (" on each rank", _on_shards(asked, move))):
                if place and asked.size == 1:
                    continue
                for name, predict in predicts.items():
                    moved = {name: after(predict, on)}
                    yield Hypothesis(f"layout: {word}", f"{name} is {word}{place}{base}", moved)


def _of_dims(asked: Asked) -> Iterator[Hypothesis]:
    """Scores of the first dims only, as far as whole tiles go."""
    dim = asked.case.problem.head_dim
    for kept in sorted({dim // tile * tile for tile in (8, 16, 32, 64)} | {dim - 1}):
        if 0 < kept < dim:
            cause = f"scores are made of the first {kept} of {dim} dims of a head"
            yield from altered(asked, "dims cut", cause, moving(_first_dims(kept), "q"), str(kept))


def _first_dims(kept: int) -> Stage:
    return lambda x: torch.cat([x[..., :kept], torch.zeros_like(x[..., kept:])], -1)


def _on_shards(asked: Asked, move: Stage) -> Stage:
    def moved(x: Tensor) -> Tensor:
        shards = asked.shards(x)
        return asked.joined(move(shards.flatten(0, 1)).unflatten(0, shards.shape[:2]))

    return moved
