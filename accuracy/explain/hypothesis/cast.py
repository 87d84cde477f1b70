"""A cast to a format coarser than the case's own: of an input, a stage or a result, or between the blocks.

A format's own rounding is no fault.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from accuracy.core import quantisation
from accuracy.core.dtype import FORMATS, INPUT_FORMATS, effective_dtype, form_of
from accuracy.explain.hypothesis.attention import Attention, Stage
from accuracy.explain.hypothesis.base import BACKWARD, FORWARD, Asked, Hypothesis, altered, gradients_of
from accuracy.explain.hypothesis.blocks import contributions
from accuracy.explain.hypothesis.merge import CHUNKS, blocks_of, merged, orders, right
from accuracy.results.table import SCALED, SUM
from accuracy.runtime.rounding import quantise

STAGES = {
    "scores": "the scores are", "weights": "P of the forward is", "backward_weights": "P of the backward is",
    "lse": "lse is", "out": "out is", "delta": "delta is", "dp": "dP is", "ds": "dS is",
    "dk_heads": "dk of each query head is", "dv_heads": "dv of each query head is",
}  # fmt: skip
INPUTS = {("q",): "q is", ("k",): "k is", ("v",): "v is", ("dout",): "dout is", ("k", "v"): "k and v are",
          ("q", "k", "v"): "q, k and v are"}  # fmt: skip
SHARES = ("tensor", "head", "token")
CACHED = (("k", "v"), ("q", "k", "v"))


def _coarser(asked: Asked) -> Iterator[tuple[str, Stage]]:
    """Yield each format coarser than the case's own, with a function that casts to it and back."""
    arithmetic = str(dict(asked.case.variant.options).get("arithmetic"))
    in_tf32 = asked.case.dtype == "float32" and arithmetic.startswith("tf32")
    for form in FORMATS.values():
        if in_tf32 and form.name == "float16":  # on most inputs the same numbers
            yield arithmetic, partial(_in_tf32, cut=arithmetic.endswith("cut"))
        elif form.precision < FORMATS[asked.case.dtype].precision:
            yield form.name, partial(_there_and_back, dtype=getattr(torch, form.name))


def _in_tf32(x: Tensor, cut: bool) -> Tensor:
    """x with 10 of 52 bits behind the binary point: rounded to the nearest, or cut off."""
    return ((x.view(torch.int64) + (0 if cut else 1 << 41)) & -(1 << 42)).view(torch.float64)


def _there_and_back(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).double()


def of_stages(asked: Asked) -> Iterator[Hypothesis]:
    """Casts of inputs, also to 8 bits with a scale, of stages and of results."""
    yield from _sum_of_softmax(asked)
    yield from _scaled_query(asked)
    yield from _eight_bits(asked)
    right = asked.reference
    for form, to in _coarser(asked):
        for name, base, x in asked.finals():
            if form_of(form).precision < FORMATS[effective_dtype(name, asked.case.dtype)].precision:
                yield Hypothesis(f"cast of {name}", f"{name} is cast to {form}{base}", {name: to(x)}, form)
        for inputs, word in INPUTS.items():
            name = f"cast of {' and '.join(inputs)}"
            yield from altered(asked, name, f"{word} cast to {form}", asked.moved(to, *inputs), form)
        saved = {"lse": (right.out, to(right.lse)), "out": (to(right.out), right.lse)}
        for name, pair in saved.items() if set(asked.wrong) & set(BACKWARD) else ():
            cause = f"the backward is given {name} cast to {form}"
            yield Hypothesis(f"cast of saved {name}", cause, gradients_of(right.but(saved=pair)), form)
        for stage, word in STAGES.items():
            yield from altered(asked, f"cast of {stage}", f"{word} cast to {form}", {"stages": {stage: to}}, form)
        both = {"stages": {"weights": to, "backward_weights": to}}
        yield from altered(asked, "cast of P", f"P is cast to {form}", both, form)


def _sum_of_softmax(asked: Asked) -> Iterator[Hypothesis]:
    """The sum of exp(s - max) over a row's keys, kept in 16 bits as it is added in chunks, key by key from the maximum
    of the row. lse says which value of the format it has in the end; where that is the next one, a tie fell otherwise,
    and it is taken. Out is as far off."""
    if not asked.forward_wrong or "lse" not in asked.returned:
        return
    right, lse = asked.reference, asked.returned["lse"].transpose(1, 2)
    scores, top = right.scores.masked_fill(right.counts == 0, -torch.inf), right.row_max
    for form, length in product((each for each in FORMATS.values() if each.bytes == 2), (1, *CHUNKS)):
        if form.precision > FORMATS[asked.case.dtype].precision or length >= 2 * scores.shape[-1]:
            continue
        to = partial(_there_and_back, dtype=getattr(torch, form.name))
        total, before = torch.zeros_like(top), torch.full_like(top, -1e30)
        for chunk in scores.split(length, -1):
            now = top if length == 1 else torch.maximum(before, chunk.amax(-1))
            total = to(total * torch.exp(before - now) + torch.exp(chunk - now[..., None]).sum(-1))
            before = now
        found = to(torch.exp(lse - top))
        total = torch.where((found - total).abs() <= 2 * form.unit_roundoff * total, found, total)
        kept = top + total.log()
        out = right.out * torch.exp(right.exact_lse - kept)[..., None]
        predicts = {"lse": kept.transpose(1, 2), "out": out.transpose(1, 2)}
        yield Hypothesis(SUM, f"the softmax's sum over keys is kept in {form.name}", predicts, f"{length} keys", 1)


def _scaled_query(asked: Asked) -> Iterator[Hypothesis]:
    """q times the scale, or times it and log2(e) for exp2, in the case's own 16 bits, which lse shows."""
    form = FORMATS[asked.case.dtype]
    for unit in (1.0, math.log2(math.e)) if form.bytes == 2 else ():
        factor = asked.case.problem.softmax_scale * unit
        q = _there_and_back(asked.reference.q * factor, getattr(torch, form.name)) / factor
        yield from altered(asked, SCALED, f"q times the scale is rounded to {form.name}", {"q": q}, f"times {unit:.3g}")


def _eight_bits(asked: Asked) -> Iterator[Hypothesis]:
    """Inputs in 8 bits, as inference keeps keys and values: divided by a scale, which is what their largest value has
    to the format's; in float32, which is what such code is written in, or in the case's own precision."""
    arithmetic = {", in float32": torch.float32, "": torch.float64}
    kinds = product(INPUT_FORMATS.items(), SHARES, CACHED, arithmetic.items())
    for (dtype, form), share, inputs, (suffix, precision) in kinds:

        def to(x: Tensor, how: tuple[Any, ...] = (precision, form, quantisation.Policy(granularity=share))) -> Tensor:
            return quantise(x.to(how[0]), *how[1:]).double()

        cause = f"{INPUTS[inputs]} cast to {dtype} with a scale a {share}"
        name, parameter = f"cast of {' and '.join(inputs)}", f"{dtype}, {share}{suffix}"
        yield from altered(asked, name, cause, asked.moved(to, *inputs), parameter)


def between_blocks(asked: Asked) -> Iterator[Hypothesis]:
    """Casts of each block's partial, of the running sums, of what travels, of a block's weights."""
    if asked.size < 2 or asked.case.problem.queries != asked.case.problem.seqlen:
        return
    for form, to in _coarser(asked):
        yield from _wire(asked, form, to)
        if set(asked.wrong) & set(FORWARD):
            yield from _merges(asked, form, to)
        for name, base, attention in asked.gradients():
            yield from _sums(asked, name, attention, base, form, to)


def _wire(asked: Asked, form: str, to: Stage) -> Iterator[Hypothesis]:
    """Keys, values or both that came from another rank: both versions side by side, each seen by its own queries."""
    queries, keys = asked.owners
    same = (queries[:, None] == keys[None]).double()
    right, length = asked.reference, asked.case.problem.seqlen
    counts = torch.cat([right.counts * same, right.counts * (1 - same)], -1)

    def folded(x: Tensor) -> Tensor:
        return x[:, :, :length] + x[:, :, length:]

    sums = {"dk_heads": folded, "dv_heads": folded}
    for names, verb in ((("k", "v"), "are"), (("k",), "is"), (("v",), "is")):
        both = {name: torch.cat([x, to(x) if name in names else x], 2) for name, x in (("k", right.k), ("v", right.v))}
        word = " and ".join(names)
        cause = f"{word} of other ranks {verb} cast to {form}"
        yield from altered(
            asked, f"cast of {word} on the wire", cause, {**both, "counts": counts, "stages": sums}, form
        )


def _merges(asked: Asked, form: str, to: Stage) -> Iterator[Hypothesis]:
    """Yield the hypotheses that each block's out, lse or weights, or the running out or lse, is cast."""
    plain = blocks_of(asked)
    towards = orders(asked)
    first = next(iter(towards.values()))

    def cut_weights(attention: Attention) -> Attention:
        shift = torch.exp((attention.exact_lse - attention.row_max).clamp(-700, 700))[..., None]
        return attention.but(stages={"weights": lambda x: to(x * shift) / shift})

    cast_blocks = {
        "each block's out": replace(plain, out=to(plain.out)),
        "each block's lse": replace(plain, lse=to(plain.lse)),
        "each block's exp(s - max)": blocks_of(asked, cut_weights),
    }
    for word, blocks in cast_blocks.items():
        yield merged(asked, blocks, f"cast of {word}", f"{word} is cast to {form}", first, form, right)

    def running(*state: Tensor, cast: str) -> tuple[Tensor, Tensor]:
        out, lse = right(*state)
        return to(out) if "out" in cast else out, to(lse) if "lse" in cast else lse

    for order, sources in towards.items():
        for words in ("out is", "lse is", "out and lse are"):
            formula = partial(running, cast=words)
            name, cause = f"cast of the running {words.rsplit(' ', 1)[0]}", f"the running {words} cast to {form}"
            yield merged(asked, plain, name, cause, sources, f"{form}, {order}", formula)


def _sums(asked: Asked, name: str, attention: Attention, base: str, form: str, to: Stage) -> Iterator[Hypothesis]:
    """Of each block's gradient, and of the sum after each block, in either direction of the ring."""
    sums = contributions(asked, name, attention)
    size = asked.size
    for ahead, direction in ((-1, "r - 1"), (1, "r + 1")):
        each, total, both = (torch.zeros(size, sums.shape[-1], dtype=torch.float64) for _ in range(3))
        for rank in range(size):
            for hop in range(size):
                other = (rank + ahead * hop) % size
                block = sums[rank, other] if name == "dq" else sums[other, rank]
                each[rank] += to(block)
                total[rank] = to(total[rank] + block)
                both[rank] = to(both[rank] + to(block))
        for idea, word, made in (
            ("each block", f"{name} of each block is", each),
            ("sum", f"the sum of {name} is, after each hop,", total),
            ("each block and sum", f"{name} of each block and their sum are", both),
        ):
            cause, parameter = f"{word} cast to {form}{base}", f"{form}, rank {direction} next"
            yield Hypothesis(f"cast of gradients: {idea}", cause, asked.on_ranks(name, made), parameter)
