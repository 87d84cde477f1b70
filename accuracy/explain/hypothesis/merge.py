"""A flaw in the merge of partials: its weights, its lse, the lse of a block, a block without keys.

Partials of each rank's keys are merged one after another, in four orders, by formulas that have one thing wrong.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from accuracy.explain.hypothesis.attention import Attention
from accuracy.explain.hypothesis.backward import read_transposed
from accuracy.explain.hypothesis.base import BACKWARD, FORWARD, Asked, Hypothesis

State = tuple[Tensor, Tensor]  # out (B, H, Sq, D), lse (B, H, Sq, 1)
Formula = Callable[[Tensor, Tensor, Tensor, Tensor], State]


def right(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> State:
    """The weighted mean, and the joint lse."""
    weight = torch.sigmoid(block_lse - lse)
    return out + weight * (block_out - out), torch.logaddexp(lse, block_lse)


def _out(formula: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Formula:
    """Another out, of (out, block_out, the block's weight); lse is right."""

    def merged(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> State:
        return formula(out, block_out, torch.sigmoid(block_lse - lse)), torch.logaddexp(lse, block_lse)

    return merged


def _lse(formula: Callable[[Tensor, Tensor], Tensor]) -> Formula:
    """Another lse is kept, of (lse, block_lse); out is merged with the weights that follow from what was kept."""

    def merged(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> State:
        return right(out, lse, block_out, block_lse)[0], formula(lse, block_lse)

    return merged


def _updated(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> State:
    joint = torch.logaddexp(lse, block_lse)
    return out + torch.sigmoid(block_lse - joint) * (block_out - out), joint


FORMULAS: dict[str, Formula] = {
    "lse is not updated": _lse(lambda lse, block: lse),
    "lse is overwritten by the block's": _lse(lambda lse, block: block),
    "lse is the larger of both": _lse(torch.maximum),
    "lse is the sum of both": _lse(lambda lse, block: lse + block),
    "lse is the mean of both": _lse(lambda lse, block: (lse + block) / 2),
    "the block's weight and the other's are exchanged": _out(lambda out, block, weight: block + weight * (out - block)),
    "partials are added without weights": _out(lambda out, block, weight: out + block),
    "partials are averaged without weights": _out(lambda out, block, weight: (out + block) / 2),
    "the block's partial replaces the earlier ones": _out(lambda out, block, weight: block),
    "the block's partial is left out": _out(lambda out, block, weight: out),
    "the earlier partial is not rescaled": _out(lambda out, block, weight: out + weight * block),
    "the block's partial is not weighted": _out(lambda out, block, weight: (1 - weight) * out + block),
    "weights come from the updated lse": _updated,
    "lse is joined with the wrong sign": _lse(lambda lse, block: lse + functional.logsigmoid(lse - block)),
    "lse is joined with exchanged operands": _lse(lambda lse, block: lse - functional.logsigmoid(block - lse)),
    "the larger partial wins": _out(lambda out, block, weight: torch.where(weight > 0.5, block, out)),
}
BLOCK_LSE: dict[str, Callable[[Tensor], Tensor]] = {
    "a block's lse is to base 2 and merged as a natural logarithm": lambda x: x / math.log(2),
    "a block's lse is natural and merged as one to base 2": lambda x: x * math.log(2),
    "a block's lse is without logarithm": torch.exp,
    "a block's lse has the wrong sign": torch.neg,
    "a block's lse is 0": torch.zeros_like,
}
CHUNKS = (16, 32, 64, 128, 256)
EMPTY = {"lse = 0": 0.0, "lse = +inf": 1e300, "a lse of -1": -1.0}


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Each flaw in each order that gives other results."""
    if asked.forward_wrong:
        yield from _of_chunks(asked)
    if asked.size < 2 or not asked.forward_wrong:
        return
    blocks = blocks_of(asked)
    for order, towards in orders(asked).items():
        for word, formula in FORMULAS.items():
            yield merged(asked, blocks, f"merge: {word}", f"in the merge {word}", towards, order, formula)
    transposed = {"a block's lse is of (B, S, H) read as (B, H, S)": read_transposed(asked)}
    for word, change in (BLOCK_LSE | transposed).items():
        yield merged(asked, blocks, f"merge: {word}", word, next(iter(orders(asked).values())), "", right, change)
    if (blocks.lse == -torch.inf).any():  # of which a row sees no key
        towards = next(iter(orders(asked).values()))
        for word, value in EMPTY.items():
            cause = f"a block without visible keys is merged with out = 0 and {word}"
            yield merged(asked, blocks, "merge: an empty block", cause, towards, word, right, empty=value)
    if "out" in asked.wrong and asked.case.problem.head_dim >= 2 * asked.size:
        yield _weights(asked, blocks)


def _of_chunks(asked: Asked) -> Iterator[Hypothesis]:
    """Chunks of keys within a rank, whose maxima an online softmax, or a merge of splits, gets wrong."""
    right = asked.reference
    scores = right.scores.masked_fill(right.counts == 0, -torch.inf)
    for length in CHUNKS:
        if length >= scores.shape[-1]:
            return
        chunk = torch.arange(scores.shape[-1]) // length
        tops = torch.stack([scores[..., chunk == each].amax(-1) for each in range(int(chunk[-1]) + 1)], -1)
        running = tops.cummax(-1).values
        scaled = tops / right.scale * right.q.shape[-1] ** -0.5
        causes = {
            f"earlier chunks of {length} keys are not rescaled to a new maximum": (running, running[..., -1:]),
            f"the maxima of chunks of {length} keys have the scale D^-0.5, not the softmax's": (
                tops - scaled + scaled.amax(-1, keepdim=True), scaled.amax(-1, keepdim=True),
            ),
        }  # fmt: skip
        for cause, (off, top) in causes.items():
            parts = torch.exp(scores - off.nan_to_num(neginf=0.0)[..., chunk])
            total = parts.sum(-1, keepdim=True)
            out = torch.einsum("bhqk,bhkd->bhqd", parts / total, right.v[:, right.heads])
            lse = (top + total.log()).squeeze(-1)
            if out.isfinite().all() and lse.isfinite().all():
                predicts = {"out": out.transpose(1, 2), "lse": lse.transpose(1, 2)}
                yield Hypothesis(f"chunks: {cause.split(' keys ')[1]}", cause, predicts, str(length))


@dataclass(frozen=True)
class Blocks:
    """Partials over each rank's keys: out (W, B, H, Sq, D), lse (W, B, H, Sq, 1), -inf of rows without keys there."""

    out: Tensor
    lse: Tensor


def blocks_of(asked: Asked, change: Callable[[Attention], Attention] = lambda part: part) -> Blocks:
    """The right partials. change: of each part by itself."""
    right, keys = asked.reference, asked.owners[1]
    parts = [change(right.but(counts=right.counts * (keys == rank), stages={})) for rank in range(asked.size)]
    out = torch.stack([each.out.nan_to_num(nan=0.0) for each in parts])
    return Blocks(out, torch.stack([each.exact_lse for each in parts])[..., None])


def merge(
    asked: Asked, blocks: Blocks, towards: Tensor, formula: Formula, lse_of: Callable[[Tensor], Tensor] | None = None,
    empty: float | None = None,
) -> State:  # fmt: skip
    """The state after all hops. towards: (W, W), whose keys each rank has at each hop."""
    sources = towards[asked.owners[0]]  # (Sq, hops)
    rows = torch.arange(sources.shape[0])
    lses = blocks.lse
    if lse_of is not None:
        hidden = lses == -torch.inf
        lses = torch.stack([lse_of(each) for each in lses.masked_fill(hidden, 0.0)]).masked_fill(hidden, -torch.inf)
    if empty is not None:
        lses = lses.masked_fill(lses == -torch.inf, empty)
    out, lse = torch.zeros_like(blocks.out[0]), torch.full_like(lses[0], -torch.inf)
    for hop in range(asked.size):
        source = sources[:, hop]
        block_out, block_lse = (x[source, :, :, rows].permute(1, 2, 0, 3) for x in (blocks.out, lses))
        first, none = lse == -torch.inf, block_lse == -torch.inf
        new_out, new_lse = formula(out, lse.masked_fill(first, 0.0), block_out, block_lse.masked_fill(none, 0.0))
        out = torch.where(none, out, torch.where(first, block_out, new_out))
        lse = torch.where(none, lse, torch.where(first, block_lse, new_lse))
    return out, lse


def merged(
    asked: Asked, blocks: Blocks, name: str, cause: str, towards: Tensor, order: str, formula: Formula,
    lse_of: Callable[[Tensor], Tensor] | None = None, empty: float | None = None,
) -> Hypothesis:  # fmt: skip
    """The results of a flawed merge, and the gradients of those. order: in words; the rest: see `merge`."""
    made: dict[str, Tensor] = {}

    def tensor(which: str) -> Tensor:
        if not made:
            out, lse = merge(asked, blocks, towards, formula, lse_of, empty)
            made.update(out=out, lse=lse.squeeze(-1))
        if which not in made:
            made[which] = getattr(asked.reference.but(saved=(made["out"], made["lse"])), which)
        return made[which].transpose(1, 2)

    return Hypothesis(name, cause, {which: partial(tensor, which) for which in (*FORWARD, *BACKWARD)}, order)


def orders(asked: Asked) -> dict[str, Tensor]:
    """(W, W): whose keys each rank has at each hop."""
    rank, hop = torch.arange(asked.size)[:, None], torch.arange(asked.size)[None]
    back, ahead = (rank - hop) % asked.size, (rank + hop) % asked.size
    return {
        "own keys first, then rank r - 1's": back,
        "own keys first, then rank r + 1's": ahead,
        "rank 0's keys first": hop.expand_as(back),
        "the last rank's keys first": (asked.size - 1 - hop).expand_as(back),
        "rank r - 1's keys first, own last": back.roll(-1, 1),
    }


def _weights(asked: Asked, blocks: Blocks) -> Hypothesis:
    """Any weights in each row: D values of out for W of them."""
    x, parts = asked.returned["out"].transpose(1, 2), blocks.out.permute(1, 2, 3, 4, 0)  # (B, H, Sq, D, W)
    there = (blocks.lse != -torch.inf).permute(1, 2, 3, 4, 0)
    parts = parts.masked_fill(~there, 0.0)
    weights = (torch.linalg.pinv(parts, rcond=1e-12) @ x[..., None]).masked_fill(~there.transpose(-1, -2), 0.0)
    made = (parts @ weights).squeeze(-1).transpose(1, 2)
    unit = bool(((weights.sum(-2) - 1).abs() < 1e-6).all())
    cause = "the partials are right and are merged with wrong weights" + ("" if unit else ", which do not add up to 1")
    return Hypothesis("merge: other weights", cause, {"out": made}, "a weight a row", weights.numel())
