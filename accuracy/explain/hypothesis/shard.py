"""Another rank's shard, another order of tokens, another tensor: of a result, or of the keys or values."""

from collections.abc import Iterator

from torch import Tensor

from accuracy.core import sharding
from accuracy.explain.hypothesis.attention import Stage
from accuracy.explain.hypothesis.base import Asked, Hypothesis, after, altered, moving
from accuracy.runtime.sharding import cut, join

MOST_SWAPPED = 4  # ranks of which any two may be exchanged; of more, neighbours


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Moves of the finished tensors, then of the inputs."""
    moves = dict(_moves(asked))
    for base, predicts in asked.finals():
        for word, move in moves.items():
            for name, predict in predicts.items():
                yield Hypothesis(f"moved: {word}", f"{name} has {word}{base}", {name: after(predict, move)})
        if {"dk", "dv"} <= set(predicts):
            swapped = {"dk": predicts["dv"], "dv": predicts["dk"]}
            yield Hypothesis("dk and dv exchanged", f"dk and dv are exchanged{base}", swapped)
    for word, move in moves.items():
        for name in ("k", "v", "q", "dout") if "shard of rank" in word else ("k", "v"):
            change = moving(_head_first(move), name)
            yield from altered(asked, f"{name} moved: {word}", f"{name} has {word}", change)


def _moves(asked: Asked) -> Iterator[tuple[str, Stage]]:
    """Of (B, S, heads, D) in token layout, by what a tensor then has."""
    if asked.case.problem.queries != asked.case.problem.seqlen:
        return
    if asked.size > 1:
        yield from _of_shards(asked)
        yield from _of_shardings(asked)
    yield "all tokens in reverse order", lambda x: x.flip(1)
    yield "all tokens rolled by 1", lambda x: x.roll(1, 1)
    yield "all tokens rolled by -1", lambda x: x.roll(-1, 1)
    if asked.case.problem.batch > 1:
        yield "the next batch item's values", lambda x: x.roll(-1, 0)
        yield "the first batch item's values", lambda x: x[:1].expand_as(x)


def _of_shards(asked: Asked) -> Iterator[tuple[str, Stage]]:
    size = asked.size
    orders = {
        f"the shard of rank r + {step}": [(rank + step) % size for rank in range(size)] for step in range(1, size)
    }
    orders["the shard of rank W - 1 - r"] = list(reversed(range(size)))
    if size % 2 == 0 and size > 2:
        orders["the shard of rank r XOR 1"] = [rank ^ 1 for rank in range(size)]
    for first in range(size):
        for other in range(first + 1, size if size <= MOST_SWAPPED else min(first + 2, size)):
            order = list(range(size))
            order[first], order[other] = other, first
            orders[f"the shards of ranks {first} and {other} exchanged"] = order
    for word, order in orders.items():
        yield word, _on_shards(asked, _in_order(order))
    if asked.case.problem.seqlen // size % 2 == 0:
        yield "the halves of each shard exchanged", _on_shards(asked, lambda x: x.roll(x.shape[2] // 2, 2))
    yield "each shard's tokens in reverse order", _on_shards(asked, lambda x: x.flip(2))
    yield "each shard's tokens rolled by 1", _on_shards(asked, lambda x: x.roll(1, 2))
    yield "each shard's tokens rolled by -1", _on_shards(asked, lambda x: x.roll(-1, 2))


def _of_shardings(asked: Asked) -> Iterator[tuple[str, Stage]]:
    mine, length = asked.case.variant.sharding, asked.case.problem.seqlen
    for other in sharding.SHARDINGS:
        if other != mine and sharding.unsupported(other, length, asked.size) is None:
            yield f"tokens of {other} shards, not of {mine} ones", _recut(other, mine, asked.size)
            yield f"tokens of {mine} shards read as {other} ones", _recut(mine, other, asked.size)


def _in_order(order: list[int]) -> Stage:
    return lambda shards: shards[order]


def _recut(one: str, other: str, size: int) -> Stage:
    return lambda x: join(cut(x, one, size), other)


def _on_shards(asked: Asked, move: Stage) -> Stage:
    def moved(x: Tensor) -> Tensor:
        return asked.joined(move(asked.shards(x)))

    return moved


def _head_first(move: Stage) -> Stage:
    return lambda x: move(x.transpose(1, 2)).transpose(1, 2)
