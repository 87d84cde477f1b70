"""A stage of the backward, or the end of the forward, left out, done twice, or made of something else, as of one rank's
partial."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from accuracy.explain.hypothesis.attention import Attention, Stage
from accuracy.explain.hypothesis.base import (
    BACKWARD,
    Asked,
    Hypothesis,
    Predicts,
    altered,
    gradients_of,
    head_first,
    tensors_of,
)
from accuracy.explain.hypothesis.constant import in_some_rows
from accuracy.results.table import RULED_OUT

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
            yield Hypothesis(word, f"{word}{base}", gradients_of(attention.but(stages=stages)))
        if attention.slope_of_cap is not None:
            changed = gradients_of(attention.but(stages={"ds": partial(torch.div, other=attention.slope_of_cap)}))
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

    as_weights = {"stages": {"weights": lambda x: right.scores * right.counts}}
    yield from altered(asked, "no softmax", "scores are used as weights, without softmax", as_weights)


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
        found = right.but(saved=(right.out, right.lse - a.log()), stages={"delta": lambda x: delta})
        predicts = {**gradients_of(found), "dq": made}
        if not lse_right and _refuted(asked, found.tensor("dk")):
            if delta_right:
                cause = in_some_rows("dq", a.transpose(1, 2), asked)
                yield Hypothesis("a factor on some rows", cause, {"dq": made}, "", a.numel())
            return
    yield Hypothesis("another lse or delta (backward)", cause, predicts, which, 2 * a.numel())


def _refuted(asked: Asked, made: Tensor) -> bool:
    """Return whether dk is right, and another one than a wrong lse makes."""
    x, right = asked.returned.get("dk"), asked.reference.tensor("dk")
    if x is None:
        return False
    limit = asked.expected["dk"] * right.norm()
    return bool((x - right).norm() <= RULED_OUT * limit < (x - made).norm())


def of_partials(asked: Asked) -> Iterator[Hypothesis]:
    """Partials over one rank's keys only, and other rows' lse or out, in the forward and in the backward."""
    if asked.size < 2:
        return
    for word, counts in _partials(asked).items():
        yield from _of_keys(asked, word, asked.reference.but(counts=counts))
    for step in range(1, asked.size):
        yield from _of_rows(asked, f"the rank {step} behind", partial(torch.roll, shifts=step, dims=0))
    if asked.case.problem.queries % (2 * asked.size) == 0:
        halves: dict[str, Stage] = {
            "the other half of the shard": lambda x: x.roll(x.shape[2] // 2, 2),
            "the first half of the shard, for both": lambda x: torch.cat([x.chunk(2, dim=2)[0]] * 2, dim=2),
            "the second half of the shard, for both": lambda x: torch.cat([x.chunk(2, dim=2)[1]] * 2, dim=2),
        }
        for word, move in halves.items():
            yield from _of_rows(asked, word, move)


def _of_keys(asked: Asked, word: str, part: Attention) -> Iterator[Hypothesis]:
    """A partial as the result, and what the backward is given."""
    right, name = asked.reference, f"a partial: {word}"
    if asked.forward_wrong:
        every = tensors_of(part)
        yield Hypothesis(name, f"out and lse are the partial of {word}", every)
        yield Hypothesis(name, f"out is the partial of {word}", {"out": every["out"]})
        yield Hypothesis(name, f"lse is the partial of {word}", {"lse": every["lse"]})
    if set(asked.wrong) & set(BACKWARD):
        for what, pair in _saved(right, part.out, part.lse).items():
            cause = f"the backward is given the {what} of {word}, not of all keys"
            yield Hypothesis(f"a partial {what}: {word} (backward)", cause, gradients_of(right.but(saved=pair)))
        cause = f"the gradients are those of {word} alone"
        yield Hypothesis(f"gradients of a partial: {word}", cause, gradients_of(part))


def _of_rows(asked: Asked, whose: str, move: Stage) -> Iterator[Hypothesis]:
    """Another rank's, or half's, lse or out in the backward, and as a result."""
    right, on = asked.reference, head_first(asked.on_shards(move))
    out, lse = on(right.out), on(right.lse)
    if set(asked.wrong) & set(BACKWARD):
        for what, pair in _saved(right, out, lse).items():
            cause = f"the backward is given the {what} of {whose}"
            yield Hypothesis(f"{what} of {whose} (backward)", cause, gradients_of(right.but(saved=pair)))
    if "half" in whose:
        for name, moved in (("out", out), ("lse", lse)):
            yield Hypothesis(f"{name} of {whose}", f"{name} is that of {whose}", {name: moved.transpose(1, 2)})


def _saved(right: Attention, out: Tensor, lse: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    return {"lse": (right.out, lse), "out": (out, right.lse), "out and lse": (out, lse)}


def _partials(asked: Asked) -> dict[str, Tensor]:
    """Which keys each row counts, by what that is called; none under which a row has no key."""
    queries, keys = asked.owners
    right, size = asked.reference.counts, asked.size
    owners = {
        "its own rank": queries, "the rank before": (queries - 1) % size, "the rank after": (queries + 1) % size,
        "rank 0": queries * 0, "the last rank": queries * 0 + size - 1,
    }  # fmt: skip
    found = {}
    for word, owner in owners.items():
        same = keys[None] == owner[:, None]
        found[f"the keys of {word}"] = right * same
        found[f"all keys but those of {word}"] = right * ~same
    found = {word: counts for word, counts in found.items() if not torch.equal(counts, right)}
    found["the last hop's keys"] = _last_hop(asked, -1)
    found["the last hop's keys (towards rank r + 1)"] = _last_hop(asked, 1)
    return {word: counts for word, counts in found.items() if (counts != 0).any(-1).all()}


def _last_hop(asked: Asked, towards: int) -> Tensor:
    """Of each row, the keys of the rank that its ring visits last of those with keys that it sees."""
    queries, keys = asked.owners
    counts = torch.zeros_like(asked.reference.counts)
    for step in range(asked.size):
        source = (queries + towards * step) % asked.size
        block = asked.reference.counts * (keys[None] == source[:, None])
        has = (block != 0).any(-1, keepdim=True)
        counts = torch.where(has, block, counts)
    return counts
