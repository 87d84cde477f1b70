"""A stage of the backward, or the end of the forward, left out, done twice, or made of something else."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from accuracy.explain.hypothesis.attention import Attention, Stage
from accuracy.explain.hypothesis.base import BACKWARD, Asked, Hypothesis, Predicts, altered, gradients_of, head_first

CLOSE = 1e-6  # relative: a value as near as this is the right one


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Of the forward's end, and of each stage of the backward."""
    if asked.forward_wrong:
        yield from _forward(asked)
    if not set(asked.wrong) & set(BACKWARD):
        return
    right, transposed = asked.reference, read_transposed(asked)
    scale, dim = asked.case.problem.softmax_scale, right.q.shape[-1]
    for word, lse in {
        "1/ln 2 times its value": right.lse / math.log(2), "ln 2 times its value": right.lse * math.log(2),
        "its value of (B, S, H) read as (B, H, S)": transposed(right.lse), "0": torch.zeros_like(right.lse),
    }.items():  # fmt: skip
        cause = f"the backward takes {word} for lse"
        yield Hypothesis(f"lse {word} (backward)", cause, gradients_of(right.but(saved=(right.out, lse))))
    yield from _delta_of(asked)
    one: dict[str, dict[str, Stage]] = {
        "delta is missing": {"delta": torch.zeros_like},
        "delta has the wrong sign": {"delta": torch.neg},
        "delta is counted twice": {"delta": lambda x: 2 * x},
        "delta is scaled by the softmax scale": {"delta": lambda x: x * scale},
        "delta is the mean over D, not the sum": {"delta": lambda x: x / dim},
        "delta is of (B, S, H) read as (B, H, S)": {"delta": transposed},
        "P is not normalised": {"backward_weights": lambda x: x * right.lse.exp()[..., None]},
        "P is P squared": {"backward_weights": torch.square},
    }
    for base, attention in asked.bases:
        for word, stages in one.items():
            yield Hypothesis(word, f"{word}{base}", gradients_of(attention.with_stages(**stages)))
        if attention.slope_of_cap is not None:
            changed = gradients_of(attention.with_stages(ds=partial(torch.div, other=attention.slope_of_cap)))
            yield Hypothesis("no slope of the softcap", f"the slope of the softcap is missing{base}", changed)


def _forward(asked: Asked) -> Iterator[Hypothesis]:
    """Out unnormalised or normalised by something else; lse without, or with twice, its parts."""
    right = asked.reference
    top = right.row_max
    ends = {
        "out is not normalised": right.out * right.lse.exp()[..., None],
        "out is not normalised (a sum of exp(s - max) v)": right.out * (right.lse - top).exp()[..., None],
        "out is normalised twice": right.out / right.lse.exp()[..., None],
        "lse lacks the row maximum": right.lse - top,
        "lse is the row maximum": top,
        "lse is the normaliser, not its logarithm": right.lse.exp(),
        "lse has the row maximum twice": right.lse + top,
        "lse is the row maximum plus the normaliser, not its logarithm": top + (right.lse - top).exp(),
    }
    for word, x in ends.items():
        yield Hypothesis(word, word, {word.split(" ", 1)[0]: x.transpose(1, 2)})

    def as_weights(attention: Attention) -> Attention:
        return attention.with_stages(weights=lambda x: attention.scores * attention.counts)

    yield from altered(asked, "no softmax", "scores are used as weights, without softmax", as_weights)


def _delta_of(asked: Asked) -> Iterator[Hypothesis]:
    """Delta of another out than the returned one."""
    right = asked.reference
    outs = {
        "the right out": right.out, "the unnormalised out": right.out * right.lse.exp()[..., None],
        "the unnormalised out, a sum of exp(s - max) v": right.out * (right.lse - right.row_max).exp()[..., None],
    }  # fmt: skip
    for base, attention in asked.bases:
        lse = attention.saved[1] if attention.saved else right.lse
        for word, out in outs.items():
            changed = attention.but(saved=(out, lse))
            yield Hypothesis(f"delta of {word}", f"delta is that of {word}{base}", gradients_of(changed))


def read_transposed(asked: Asked) -> Stage:
    """Return what makes of (B, H, S[, 1]) what ranks have that take the memory of (B, S, H) for that of (B, H, S)."""

    def move(shards: Tensor) -> Tensor:
        ranks, batch, length, heads, *rest = shards.shape
        return shards.contiguous().view(ranks, batch, heads, length, *rest).transpose(2, 3)

    return head_first(asked.on_shards(move))


def saved_values(asked: Asked) -> Iterator[Hypothesis]:
    """A wrong lse or delta that the backward is given, read off dq row by row, whatever they are: with others a row of
    dq is a sum_k P dP k - b sum_k P k, two numbers for D values."""
    if "dq" not in asked.wrong or asked.case.problem.softcap is not None or asked.case.problem.head_dim < 8:
        return
    right = asked.bases[0][1]
    keys = right.k[:, right.heads]
    columns = torch.stack([(right.backward_weights * right.dp) @ keys, right.backward_weights @ keys], -1) * right.scale
    x = asked.returned["dq"].transpose(1, 2)
    a, b = (torch.linalg.pinv(columns, rcond=1e-12) @ x[..., None]).squeeze(-1).unbind(-1)
    made = (columns @ torch.stack([a, b], -1)[..., None]).squeeze(-1).transpose(1, 2)
    several = right.counts.sum(-1) > 1  # where a row has one key both columns are one
    a = torch.where(several, a, torch.ones_like(a))
    delta = torch.where(several, -b / a, right.delta)
    lse_right = bool(((a - 1).abs() < CLOSE).all())
    delta_right = bool(((delta - right.delta).abs() < CLOSE * right.delta.abs().max()).all())
    which = "delta" if lse_right else "lse" if delta_right else "lse and delta"
    cause = f"the backward is given a wrong {which}, all else in dq being right"
    predicts: Predicts = {"dq": made}
    if bool((a > 0).all()):  # what dq shows must make dk and dv too
        found = right.but(saved=(right.out, right.lse - a.log())).with_stages(delta=lambda x: delta)
        predicts = {**gradients_of(found), "dq": made}
    yield Hypothesis("another lse or delta (backward)", cause, predicts, which, 2 * a.numel())
