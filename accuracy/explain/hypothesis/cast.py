"""A cast at a place: of an input, a stage, or the result, to a coarser format."""

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from accuracy.core import quantisation
from accuracy.core.dtype import FORMATS, INPUT_FORMATS, effective_dtype
from accuracy.explain.hypothesis.base import (
    BACKWARD,
    Asked,
    Hypothesis,
    after,
    altered,
    gradients_of,
    moving,
    rounder,
    staging,
)
from accuracy.runtime.quantise import quantise

STAGES = {
    "scores": "the scores are", "weights": "P of the forward is", "backward_weights": "P of the backward is",
    "lse": "lse is", "out": "out is", "delta": "delta is", "dp": "dP is", "ds": "dS is",
    "dk_heads": "dk of each query head is", "dv_heads": "dv of each query head is",
}  # fmt: skip
INPUTS = {("q",): "q is", ("k",): "k is", ("v",): "v is", ("dout",): "dout is", ("k", "v"): "k and v are",
          ("q", "k", "v"): "q, k and v are"}  # fmt: skip

SHARES, KEPT = ("tensor", "head", "token"), (("k", "v"), ("q", "k", "v"))


def hypotheses(asked: Asked) -> Iterator[Hypothesis]:
    """Formats below the case's own; of inputs also 8 bits with a scale."""
    yield from eight_bits(asked)
    for form in FORMATS.values():
        if form.precision >= FORMATS[asked.case.dtype].precision:
            continue
        to = rounder(getattr(torch, form.name))
        for base, predicts in asked.finals():
            for name, predict in predicts.items():
                if form.precision < FORMATS[effective_dtype(name, asked.case.dtype)].precision:
                    cause = f"{name} is cast to {form.name}{base}"
                    yield Hypothesis(f"cast of {name}", cause, {name: after(predict, to)}, form.name)
        for inputs, word in INPUTS.items():
            name = f"cast of {' and '.join(inputs)}"
            yield from altered(asked, name, f"{word} cast to {form.name}", moving(to, *inputs), form.name)
        right = asked.reference
        saved = {"lse": (right.out, to(right.lse)), "out": (to(right.out), right.lse)}
        for name, given in saved.items() if set(asked.wrong) & set(BACKWARD) else ():
            cause = f"the backward is given {name} cast to {form.name}"
            yield Hypothesis(f"cast of saved {name}", cause, gradients_of(right.but(given=given)), form.name)
        for stage, word in STAGES.items():
            change = staging(**{stage: to})
            yield from altered(asked, f"cast of {stage}", f"{word} cast to {form.name}", change, form.name)
        both = staging(weights=to, backward_weights=to)
        yield from altered(asked, "cast of P", f"P is cast to {form.name}", both, form.name)


def eight_bits(asked: Asked) -> Iterator[Hypothesis]:
    """Inputs in 8 bits, as inference keeps keys and values: divided by a scale, which is what their largest value has
    to the format's; in float32, which is what such code is written in, or in the case's own precision."""
    arithmetic = {", in float32": torch.float32, "": torch.float64}
    for (dtype, form), share, inputs in product(INPUT_FORMATS.items(), SHARES, KEPT):
        policy = quantisation.Policy(granularity=share)
        for suffix, precision in arithmetic.items():
            cause = f"{INPUTS[inputs]} cast to {dtype} with a scale a {share}"
            change = moving(partial(_quantised, form=form, policy=policy, precision=precision), *inputs)
            yield from altered(asked, f"cast of {' and '.join(inputs)}", cause, change, f"{dtype}, {share}{suffix}")


def _quantised(x: Tensor, form: str, policy: quantisation.Policy, precision: torch.dtype) -> Tensor:
    return quantise(x.to(precision), form, policy).double()
