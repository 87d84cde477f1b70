"""Values in another place, or lost: of other heads, shards, tokens or tensors, in another layout, or zero."""

from collections.abc import Iterator, Mapping
from operator import itemgetter

import torch
from torch import Tensor

from accuracy.core import sharding
from accuracy.explain.hypothesis.attention import Stage
from accuracy.explain.hypothesis.base import Asked, Hypothesis, altered, gradients_of, head_first
from accuracy.runtime.sharding import cut, join

MOST_SWAPPED = 4  # ranks of which any two may be exchanged; of more, neighbours
AXES = ("batch", "token", "head", "dim")  # of token layout; lse has no dims
KNOWN = 2  # more fitted numbers than those of each token, so that ranks and blocks are named before their tokens


def heads(asked: Asked) -> Iterator[Hypothesis]:
    """Another mapping of query heads to key/value heads, another order of a result's heads, another sum of a group."""
    kv, count = asked.case.problem.heads_kv, asked.case.problem.heads
    share, head = count // kv, torch.arange(count)
    maps = {  # the key/value head of each query head
        "h % Hk": head % kv,
        "h // (H/Hk) + 1": (head // share + 1) % kv,
        "Hk - 1 - h // (H/Hk)": kv - 1 - head // share,
        "0 for every h": head * 0,
        "min(h, Hk - 1)": head.clamp_max(kv - 1),
        "(h + 1) // (H/Hk)": (head + 1) // share % kv,
    }
    for word, heads in maps.items():
        if not torch.equal(heads, asked.reference.heads):
            cause = f"query head h takes key/value head {word}"
            yield from altered(asked, "another head mapping", cause, {"heads": heads}, word)
    orders: dict[str, Stage] = {
        "the heads rolled by 1": lambda x: x.roll(1, 2), "the heads rolled by -1": lambda x: x.roll(-1, 2),
        "the heads in reverse": lambda x: x.flip(2),
    }  # fmt: skip
    yield from _results(asked, orders)
    for word, sum_of in _sums(kv, share).items() if share > 1 else ():
        for name in ("dk", "dv"):
            for base, attention in asked.bases:
                made = gradients_of(attention.but(stages={f"{name}_heads": sum_of}))
                yield Hypothesis("another sum over the group", f"{name} is {word}{base}", {name: made[name]}, word)


def _results(asked: Asked, moves: Mapping[str, Stage]) -> Iterator[Hypothesis]:
    """Moves of the finished tensors."""
    for name, base, x in asked.finals():
        for word, move in moves.items():
            yield Hypothesis(f"moved: {word}", f"{name} has {word}{base}", {name: move(x)})


def _sums(kv: int, share: int) -> dict[str, Stage]:
    """What may be made of the query heads of a group in place of their sum, of (B, H, S, D)."""
    index = torch.arange(kv * share) % share

    def only(chosen: Tensor) -> Stage:
        return lambda x: x * chosen.double()[:, None, None]

    return {
        "the mean over its group of query heads, not the sum": lambda x: x / share,
        "only the first query head of its group": only(index == 0),
        "only the last query head of its group": only(index == share - 1),
        "the sum over the query heads h % Hk, not those of its group": lambda x: (
            x.unflatten(1, (share, kv)).transpose(1, 2).flatten(1, 2)
        ),
    }


def shards(asked: Asked) -> Iterator[Hypothesis]:
    """Another rank's shard, another order of tokens, another tensor: of a result, or of an input."""
    moves = _moves(asked)
    yield from _results(asked, moves)
    if {"dk", "dv"} <= {*asked.wrong}:
        for base, attention in asked.bases:
            exchanged = {"dk": attention.tensor("dv"), "dv": attention.tensor("dk")}
            yield Hypothesis("dk and dv exchanged", f"dk and dv are exchanged{base}", exchanged)
    for word, move in moves.items():
        for name in ("k", "v", "q", "dout") if "shard of rank" in word else ("k", "v"):
            inputs = asked.moved(head_first(move), name)
            yield from altered(asked, f"{name} moved: {word}", f"{name} has {word}", inputs)


def _moves(asked: Asked) -> dict[str, Stage]:
    """Moves of a tensor (B, S, heads, D) in token layout, by what the tensor then has."""
    problem, size, own = asked.case.problem, asked.size, asked.case.variant.sharding
    if problem.queries != problem.seqlen:
        return {}
    moves: dict[str, Stage] = {}
    if size > 1:
        moves |= {word: asked.on_shards(move) for word, move in _of_shards(size, problem.seqlen // size).items()}
        for other in sharding.SHARDINGS:
            if other != own and sharding.unsupported(other, problem.seqlen, size) is None:
                moves[f"tokens of {other} shards, not of {own} ones"] = _recut(other, own, size)
                moves[f"tokens of {own} shards read as {other} ones"] = _recut(own, other, size)
    moves["all tokens in reverse order"] = lambda x: x.flip(1)
    moves["all tokens rolled by 1"] = lambda x: x.roll(1, 1)
    moves["all tokens rolled by -1"] = lambda x: x.roll(-1, 1)
    if problem.batch > 1:
        moves["the next batch item's values"] = lambda x: x.roll(-1, 0)
        moves["the first batch item's values"] = lambda x: x[:1].expand_as(x)
    return moves


def _of_shards(size: int, length: int) -> dict[str, Stage]:
    """Moves of stacked shards (W, B, S/W, ...)."""
    ranks = [*range(size)]
    orders = {f"the shard of rank r + {step}": [(rank + step) % size for rank in ranks] for step in range(1, size)}
    orders["the shard of rank W - 1 - r"] = ranks[::-1]
    if size % 2 == 0 and size > 2:
        orders["the shard of rank r XOR 1"] = [rank ^ 1 for rank in ranks]
    for first in ranks:
        for other in ranks[first + 1 : size if size <= MOST_SWAPPED else first + 2]:
            exchanged = {first: other, other: first}
            word = f"the shards of ranks {first} and {other} exchanged"
            orders[word] = [exchanged.get(rank, rank) for rank in ranks]
    moves: dict[str, Stage] = {word: itemgetter(order) for word, order in orders.items()}
    if length % 2 == 0:
        moves["the halves of each shard exchanged"] = lambda x: x.roll(x.shape[2] // 2, 2)
    moves["each shard's tokens in reverse order"] = lambda x: x.flip(2)
    moves["each shard's tokens rolled by 1"] = lambda x: x.roll(1, 2)
    moves["each shard's tokens rolled by -1"] = lambda x: x.roll(-1, 2)
    return moves


def _recut(one: str, other: str, size: int) -> Stage:
    return lambda x: join(cut(x, one, size), other)


def layouts(asked: Asked) -> Iterator[Hypothesis]:
    """A result read in another layout, as a whole or on each rank; scores of the first dims only, as far as whole tiles
    go."""
    dim = asked.case.problem.head_dim
    for end in sorted({dim // tile * tile for tile in (8, 16, 32, 64)} | {dim - 1}):
        if 0 < end < dim:
            cause = f"scores are made of the first {end} of {dim} dims of a head"
            first_dims = (torch.arange(dim) < end).double()
            yield from altered(asked, "dims cut", cause, {"q": asked.reference.q * first_dims}, str(end))
    moves: dict[str, Stage] = {
        "(B, S, H, ...) read as (B, H, S, ...)": lambda x: (
            x.contiguous().view(x.shape[0], x.shape[2], x.shape[1], *x.shape[3:]).transpose(1, 2)
        ),
        "(B, H, S, ...) read as (B, S, H, ...)": lambda x: x.transpose(1, 2).contiguous().view(x.shape),
        "(..., H, D) read as (..., D, H)": lambda x: x if x.dim() < 4 else x.transpose(2, 3).contiguous().view(x.shape),
        "(B, S, ...) read as (S, B, ...)": lambda x: x.transpose(0, 1).contiguous().view(x.shape),
    }
    for name, base, x in asked.finals():
        for word, move in moves.items():
            yield Hypothesis(f"layout: {word}", f"{name} is {word}{base}", {name: move(x)})
            if asked.size > 1:
                shards = asked.shards(x)
                moved = asked.joined(move(shards.flatten(0, 1)).unflatten(0, shards.shape[:2]))
                yield Hypothesis(f"layout: {word}", f"{name} is {word} on each rank{base}", {name: moved})


def zeros(asked: Asked) -> Iterator[Hypothesis]:
    """Tokens, heads or dims that are zero where the right ones are not, as a tail that no tile wrote."""
    for name, base, right in asked.finals():
        x = asked.returned[name]
        for axis in range(1, x.dim()):
            all_zero, zero_anyway = ((each == 0).transpose(0, axis).flatten(1).all(1) for each in (x, right))
            lost = all_zero & ~zero_anyway
            if lost.any():
                made = right.masked_fill(lost.view([-1 if other == axis else 1 for other in range(x.dim())]), 0.0)
                where = f"{_listed(lost, AXES[axis])} of {len(lost)}"
                cause, freedom = f"{name} is zero in {where}{base}", KNOWN + int(lost.sum())
                yield Hypothesis(f"zero in some {AXES[axis]}s", cause, {name: made}, where, freedom)


def _listed(chosen: Tensor, one: str) -> str:
    """`token 3`, `tokens 16 to 29`, `tokens 0, 7, 9 and 4 more`."""
    found = torch.nonzero(chosen).flatten().tolist()
    if len(found) == 1:
        return f"{one} {found[0]}"
    if found[-1] - found[0] == len(found) - 1:
        return f"{one}s {found[0]} to {found[-1]}"
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{one}s {', '.join(map(str, found[:3]))}{more}"
