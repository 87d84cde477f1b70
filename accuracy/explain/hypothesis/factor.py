"""A constant factor or summand on a tensor: on all ranks, or another one on each."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.explain.hypothesis.base import Asked, Hypothesis, Predicts


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Factors by least squares, taken for a known constant where they are within rounding of one."""
    for base, predicts in asked.finals():
        for name, predict in predicts.items():
            x, right, limit = asked.returned[name], predict(), asked.expected[name]
            if not right.isfinite().all():
                continue
            yield from _factor(asked, name, x, right, limit, base)
            if name == "lse":
                yield from _summand(asked, x, right, limit)
            if asked.size > 1:
                yield _of_ranks(asked, name, x, right, limit, base)


def _factor(asked: Asked, name: str, x: Tensor, right: Tensor, limit: float, base: str) -> Iterator[Hypothesis]:
    fitted = _slope(x, right)
    for word, value in constants(asked).items():
        if abs(fitted - value) <= 3 * limit * max(1.0, abs(value)):
            text = "zero" if value == 0 else f"{word} times what it should be"
            yield Hypothesis("a constant factor", f"{name} is {text}{base}", _always(name, value * right), word)
    cause = f"{name} is {fitted:.10g} times what it should be{base}"
    yield Hypothesis("a constant factor", cause, _always(name, fitted * right), f"{fitted:.10g}", freedom=1)


def _summand(asked: Asked, x: Tensor, right: Tensor, limit: float) -> Iterator[Hypothesis]:
    added = float((x - right).mean())
    known = {
        "ln 2": math.log(2),
        **{f"ln {word}": math.log(value) for word, value in _sizes(asked).items() if value > 1},
    }
    for word, value in known.items():
        for sign in (1, -1):
            if abs(added - sign * value) <= 3 * limit * float(right.abs().max() + 1):
                cause = f"lse is too {'large' if sign > 0 else 'small'} by {word}"
                yield Hypothesis("a constant added", cause, _always("lse", right + sign * value), word)
    cause = f"lse is too {'large' if added > 0 else 'small'} by {abs(added):.10g}"
    yield Hypothesis("a constant added", cause, _always("lse", right + added), f"{added:.10g}", freedom=1)


def _of_ranks(asked: Asked, name: str, x: Tensor, right: Tensor, limit: float, base: str) -> Hypothesis:
    """Another factor on each rank: right ranks have 1."""
    given, shards = asked.shards(x), asked.shards(right)
    factors = [_known(asked, _slope(mine, each), limit) for mine, each in zip(given, shards, strict=True)]
    values = torch.tensor([value for _, value in factors], dtype=torch.float64)
    off = [rank for rank, value in enumerate(values.tolist()) if value != 1]
    each = ", ".join(f"{factors[rank][0]} on rank {rank}" for rank in off)
    zero = all(values[rank] == 0 for rank in off)
    cause = f"{name} is {each}{base}" if zero else f"{name} is multiplied by {each}{base}"
    prediction = asked.joined(shards * values.view(-1, *[1] * (shards.dim() - 1)))
    return Hypothesis("a factor on some ranks", cause, _always(name, prediction), each, freedom=1 + len(off))


def _known(asked: Asked, fitted: float, limit: float) -> tuple[str, float]:
    for word, value in {"1": 1.0, **constants(asked)}.items():
        if abs(fitted - value) <= 3 * limit * max(1.0, abs(value)):
            return word, value
    return f"{fitted:.10g}", fitted


def constants(asked: Asked) -> dict[str, float]:
    """Factors that are made by mistake, by what they are called."""
    sizes, scale = _sizes(asked), asked.case.problem.softmax_scale
    found = {"0": 0.0, "-1": -1.0, "2": 2.0, "1/2": 0.5, "ln 2": math.log(2), "1/ln 2": 1 / math.log(2)}
    for word, value in {"the softmax scale": scale, "sqrt(D)": math.sqrt(sizes["D"]), **sizes}.items():
        found |= {word: value, f"1/{word}": 1 / value}
    found |= {"the softmax scale squared": scale**2, "1/(the softmax scale x sqrt(D))": found["1/sqrt(D)"] / scale}
    for bits in range(2, 41):
        found |= {f"(1 + 2^-{bits})": 1 + 2.0**-bits, f"(1 - 2^-{bits})": 1 - 2.0**-bits}
    found |= {f"{percent / 100:g}": percent / 100 for percent in (90, 95, 99, 101, 105, 110)}
    return {word: value for word, value in found.items() if value != 1}


def _sizes(asked: Asked) -> dict[str, float]:
    problem = asked.case.problem
    return {
        "W": asked.size, "D": problem.head_dim, "H": problem.heads, "(H/Hk)": problem.heads / problem.heads_kv,
        "S": problem.seqlen, "(S/W)": problem.seqlen / asked.size,
    }  # fmt: skip


def _slope(x: Tensor, right: Tensor) -> float:
    """The factor of least squares; 1 where the tensor is zero."""
    square = float((right * right).sum())
    return float((x * right).sum()) / square if square > 0 else 1.0


def _always(name: str, prediction: Tensor) -> Predicts:
    return {name: lambda: prediction}
