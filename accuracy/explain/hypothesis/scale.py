"""Another softmax scale: a known one or a fitted one, in the forward, in the backward, or in dq or dk alone."""

import math
from collections.abc import Iterator

import torch

from accuracy.explain.hypothesis.attention import Attention
from accuracy.explain.hypothesis.base import Asked, Hypothesis, altered, setting

STEPS = 8  # of Gauss and Newton


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Known scales first, then the one that explains out best."""
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
            yield from altered(asked, "another softmax scale", cause, setting(scale=scale), word)
    if "out" in asked.wrong and (fitted := _fitted(asked)) is not None:
        for each in altered(asked, "another softmax scale", f"the softmax scale is {fitted:.10g}, not {right:g}",
                            setting(scale=fitted), f"{fitted:.10g}"):  # fmt: skip
            yield Hypothesis(each.name, each.cause, each.predicts, each.parameter, freedom=1)


def _fitted(asked: Asked) -> float | None:
    """The scale of least squares on out, from the right one; None where the steps lead nowhere."""
    x, scale = asked.returned["out"], asked.reference.scale
    for _ in range(STEPS):
        here, there = (_out(asked.reference, value) for value in (scale, scale * (1 + 1e-6)))
        slope = (there - here) / (scale * 1e-6)
        step = float(((x - here) * slope).sum() / (slope * slope).sum())
        scale += max(-0.5 * scale, min(step, scale))
        if not math.isfinite(scale) or scale <= 0:
            return None
        if abs(step) < 1e-14 * scale:
            break
    return scale if abs(scale / asked.reference.scale - 1) > 1e-12 else None


def _out(attention: Attention, scale: float) -> torch.Tensor:
    return attention.but(scale=scale).tensor("out")
