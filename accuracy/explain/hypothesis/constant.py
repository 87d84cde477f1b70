"""A number that is wrong: a factor or summand of a tensor, the softmax scale, a term of the normaliser."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from accuracy.core.number import count, those
from accuracy.explain.hypothesis.base import Asked, Hypothesis, Predicts, altered, gradients_of
from accuracy.results.table import RULED_OUT

STEPS = 8  # of Gauss and Newton


def factors(asked: Asked) -> Iterator[Hypothesis]:
    """A constant factor or summand on a tensor, on all ranks or another one on each, by least squares; taken for a
    known constant where it is within rounding of one."""
    known = constants(asked)
    for name, base, right in asked.finals():
        x, limit = asked.returned[name], asked.expected[name]
        if not right.isfinite().all():
            continue
        fitted = _slope(x, right)
        for word, value in known.items():
            if _near(fitted, value, limit):
                text = "zero" if value == 0 else f"{word} times what it should be"
                yield Hypothesis("a constant factor", f"{name} is {text}{base}", {name: value * right}, word)
        cause = f"{name} is {fitted:.10g} times what it should be{base}"
        yield Hypothesis("a constant factor", cause, {name: fitted * right}, f"{fitted:.10g}", freedom=1)
        if name == "lse":
            yield from _summand(asked, x, right, limit)
        if asked.size > 1:
            yield _of_ranks(asked, name, x, right, {"1": 1.0, **known}, base)


def row_factors(asked: Asked) -> Iterator[Hypothesis]:
    """Another factor on each row of out, dk or dv, by least squares; with out's, gradients of a dout that has them, as
    autograd's are. Those of dq are in `backward.saved_values`, as a wrong lse makes them."""
    for name in (each for each in ("out", "dk", "dv") if each in asked.wrong):
        x, right = asked.returned[name], asked.reference.tensor(name)
        squares = right.square().sum(-1)
        factor = torch.where(squares > 0, (x * right).sum(-1) / squares, torch.ones_like(squares))
        predicts: Predicts = {name: factor[..., None] * right}
        if name == "out":
            dout = asked.reference.dout * factor.transpose(1, 2)[..., None]
            predicts = {**gradients_of(asked.reference.but(dout=dout)), **predicts}
        yield Hypothesis("a factor on some rows", in_some_rows(name, factor, asked), predicts, "", factor.numel())


def in_some_rows(name: str, factor: Tensor, asked: Asked) -> str:
    """Return the cause of a tensor whose rows have these factors, (B, S, H): those beyond rounding, and of which batch
    items or heads they are, where they are all rows of these."""
    is_off = (factor - 1).abs() > RULED_OUT * asked.expected[name]
    off = factor[is_off] if is_off.any() else factor
    low, high = (f"{float(each):.4g}" for each in (off.min(), off.max()))
    where = "in some rows"
    for axis, noun in ((0, "batch item"), (2, "head")):
        each = is_off.movedim(axis, 0).flatten(1)
        some = each.any(1)
        if some.any() and not some.all() and torch.equal(each.all(1), some):
            where = those(noun, tuple(some.nonzero().flatten().tolist()), len(some))
    return f"{name} is {low if low == high else f'{low} to {high}'} times what it should be {where}"


def _summand(asked: Asked, x: Tensor, right: Tensor, limit: float) -> Iterator[Hypothesis]:
    added = float((x - right).mean())
    known = {"ln 2": math.log(2)}
    known |= {f"ln {word}": math.log(value) for word, value in _sizes(asked).items() if value > 1}
    for word, value in known.items():
        for sign, side in ((1, "large"), (-1, "small")):
            if abs(added - sign * value) <= 3 * limit * float(right.abs().max() + 1):
                cause = f"lse is too {side} by {word}"
                yield Hypothesis("a constant added", cause, {"lse": right + sign * value}, word)
    cause = f"lse is too {'large' if added > 0 else 'small'} by {abs(added):.10g}"
    yield Hypothesis("a constant added", cause, {"lse": right + added}, f"{added:.10g}", freedom=1)


def _of_ranks(asked: Asked, name: str, x: Tensor, right: Tensor, known: dict[str, float], base: str) -> Hypothesis:
    """Another factor on each rank: right ranks have 1."""
    shards, limit = asked.shards(right), asked.expected[name]
    fitted = [_slope(of_rank, each) for of_rank, each in zip(asked.shards(x), shards, strict=True)]
    near = ([pair for pair in known.items() if _near(value, pair[1], limit)] for value in fitted)
    factors = [(*found, (f"{value:.10g}", value))[0] for found, value in zip(near, fitted, strict=True)]
    values = torch.tensor([value for _, value in factors], dtype=torch.float64)
    off = [rank for rank, value in enumerate(values.tolist()) if value != 1]
    each = ", ".join(f"{factors[rank][0]} on rank {rank}" for rank in off)
    zero = all(values[rank] == 0 for rank in off)
    cause = f"{name} is {'' if zero else 'multiplied by '}{each}{base}"
    prediction = asked.joined(shards * values.view(-1, *[1] * (shards.dim() - 1)))
    return Hypothesis("a factor on some ranks", cause, {name: prediction}, each, freedom=1 + len(off))


def _near(fitted: float, value: float, limit: float) -> bool:
    return abs(fitted - value) <= 3 * limit * max(1.0, abs(value))


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


def scales(asked: Asked) -> Iterator[Hypothesis]:
    """No softcap. Another softmax scale: known ones first, then the one that explains out best."""
    if asked.case.problem.softcap is not None:
        yield from altered(asked, "no softcap", "the softcap is ignored", {"softcap": None})
    right, dim = asked.case.problem.softmax_scale, asked.case.problem.head_dim
    known = {
        "1": 1.0, "1/sqrt(D)": dim**-0.5, "sqrt(D)": dim**0.5, "1/D": 1 / dim, "its square": right**2,
        "its inverse": 1 / right, "its square root": right**0.5, "-1 times it": -right, "twice it": 2 * right,
        "half of it": right / 2, "ln 2 times it": right * math.log(2), "1/ln 2 times it": right / math.log(2),
        "0": 0.0, "1/sqrt(D) times it": right * dim**-0.5, "sqrt(D) times it": right * dim**0.5,
        "its value in bfloat16": float(torch.tensor(right).bfloat16()),
        "its value in float16": float(torch.tensor(right).half()),
        "its value in float32": float(torch.tensor(right)),
    }  # fmt: skip
    for word, scale in known.items():
        if scale != right:
            cause = f"the softmax scale is {scale:.6g} ({word}), not {right:g}"
            yield from altered(asked, "another softmax scale", cause, {"scale": scale}, word)
    if "out" in asked.wrong and (fitted := _fitted_scale(asked)) is not None:
        cause, word = f"the softmax scale is {fitted:.10g}, not {right:g}", f"{fitted:.10g}"
        yield from altered(asked, "another softmax scale", cause, {"scale": fitted}, word, freedom=1)


def _fitted_scale(asked: Asked) -> float | None:
    """The scale of least squares on out, from the right one; None where the steps lead nowhere."""
    x, right = asked.returned["out"], asked.reference
    scale = right.scale
    for _ in range(STEPS):
        here, there = (right.but(scale=value).tensor("out") for value in (scale, scale * (1 + 1e-6)))
        slope = (there - here) / (scale * 1e-6)
        step = float(((x - here) * slope).sum() / (slope * slope).sum())
        scale += max(-0.5 * scale, min(step, scale))
        if not math.isfinite(scale) or scale <= 0:
            return None
        if abs(step) < 1e-14 * scale:
            break
    return scale if abs(scale / right.scale - 1) > 1e-12 else None


def normalisers(asked: Asked) -> Iterator[Hypothesis]:
    """Keys of zeros that are attended to, or a constant added to the normaliser, as much on every row. A key of zeros
    has the score 0: it adds 1 to exp(lse) and nothing to the numerator of out."""
    if not asked.forward_wrong:
        return
    right = asked.reference
    for unit, sums, terms in (
        ("keys of zeros", right.lse.exp(), "exp(s)"),
        ("a constant", (right.lse - right.row_max).exp(), "exp(s - max)"),
    ):
        added = _added(asked, sums)
        if added is None:
            continue
        more = float(added.median())
        if more == 0 or not math.isfinite(more):
            continue
        more = round(more) if round(more) and abs(more - round(more)) < 1e-6 else more  # a small constant is none of 0
        out = right.out * (sums / (sums + more))[..., None]
        lse = right.lse + torch.log1p(more / sums)
        results = {"out": out.transpose(1, 2), "lse": lse.transpose(1, 2)}
        cause = f"{more:.6g} is added to the sum of {terms}"
        if terms == "exp(s)" and more > 0 and more == round(more):  # only then a number of keys
            cause = f"rows attend to {count(round(more), 'key')} of zeros too"
        predicts = {**results, **gradients_of(right.but(saved=(out, lse)))}
        yield Hypothesis(unit, cause, predicts, f"{more:.6g}", 1)


def _added(asked: Asked, sums: Tensor) -> Tensor | None:
    """(B, H, Sq): what the sum of exponentials has beyond the right one, read off lse, or off out where lse is right or
    absent."""
    right = asked.reference
    if "lse" in asked.wrong:
        return sums * torch.expm1(asked.returned["lse"].transpose(1, 2) - right.lse)
    if "out" not in asked.wrong:
        return None
    x = asked.returned["out"].transpose(1, 2)
    ratio = (x * right.out).sum(-1) / (right.out * right.out).sum(-1)
    return sums * (1 / ratio - 1)
