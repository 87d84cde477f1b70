"""Would a tolerance let a wrong answer pass? All-zero results, a dropped key, a missing softmax, for one problem.

In: a tolerance (|x - reference| <= atol + rtol |reference|, of every element or of their mean) and a problem's inputs.
Out: for each wrong answer and tensor, whether the tolerance accepts it. Dense, in float64, for small problems.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.core.errors import ConfigError
from accuracy.inputs.base import Inputs

TENSORS = ("out", "dq", "dk", "dv")
WRONG = {
    "zeros": "every element is zero",
    "dropped_key": "one key, in the middle of the sequence, is never seen",
    "no_softmax": "scores are used as weights, without softmax",
}
METRICS = ("max", "mean")
MOST_SCORES = 2**27


@dataclass(frozen=True)
class Tolerance:
    """metric: `max`, every element must be within; `mean`, the mean error must be within the mean bound.

    tokens: how many of the first tokens are compared (None: all). against: `itself` where the reference is made by
    what is tested.
    """

    atol: float = 0.0
    rtol: float = 0.0
    metric: str = "max"
    tokens: int | None = None
    against: str = "reference"

    def accepts(self, x: Tensor, reference: Tensor) -> bool:
        """Whether x (B, S, heads, D) passes for the reference."""
        x, reference = (each[:, : self.tokens] for each in (x, reference))
        error, bound = (x - reference).abs(), self.atol + self.rtol * reference.abs()
        within = error <= bound if self.metric == "max" else error.mean() <= bound.mean()
        return bool(within.all())


def tolerance(text: str, metric: str = "max", tokens: int | None = None, against: str = "reference") -> Tolerance:
    """From `atol=8e-3,rtol=1e-3`. Raises ConfigError."""
    values = {"atol": 0.0, "rtol": 0.0}
    for piece in text.split(","):
        name, _, number = piece.partition("=")
        try:
            values[name.strip()] = {"atol": float, "rtol": float}[name.strip()](number)
        except (KeyError, ValueError) as error:
            raise ConfigError(f"tolerance {piece!r} cannot be read; write atol=NUMBER,rtol=NUMBER") from error
    if not all(0 <= value < math.inf for value in values.values()):
        raise ConfigError(f"tolerance {text!r} is negative or without end; allowed: numbers from 0")
    return Tolerance(**values, metric=metric, tokens=tokens, against=against)


def accepted(limits: Tolerance, problem: Problem, inputs: Inputs) -> dict[str, dict[str, bool]]:
    """By wrong answer and tensor: does it pass? Raises ConfigError where the problem is too large for a dense check."""
    scores = problem.pairs
    if scores > MOST_SCORES:
        raise ConfigError(f"{scores:,} scores are too many at once (allowed: {MOST_SCORES:,}); lower problem.seqlen")
    reference = answer("right", problem, inputs)
    found = {}
    for wrong in WRONG:
        x = answer(wrong, problem, inputs)
        reference = reference if limits.against == "reference" else x
        found[wrong] = {name: limits.accepts(x[name], reference[name]) for name in TENSORS}
    return found


def answer(kind: str, problem: Problem, inputs: Inputs) -> dict[str, Tensor]:
    """out, dq, dk, dv in float64 of a right or a wrong attention, gradients from autograd."""
    q, k, v = (x.double().requires_grad_() for x in (inputs.q, inputs.k, inputs.v))
    share = problem.heads // problem.heads_kv
    keys, values = (x.repeat_interleave(share, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) * problem.softmax_scale
    shift = problem.seqlen - problem.queries  # the mask is aligned at the bottom right
    hidden = torch.zeros(problem.queries, problem.seqlen, dtype=torch.bool, device=q.device)
    if problem.causal:
        hidden = torch.ones_like(hidden).triu(1 + shift)
    if kind == "dropped_key":
        place = problem.seqlen // 2
        rows = torch.arange(problem.queries, device=q.device) + shift
        hidden[:, place] = rows != place  # its own row keeps it: none is empty
    if kind == "no_softmax":
        weights = scores.masked_fill(hidden, 0.0)
    else:
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, values)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), inputs.dout.double())
    named = dict(zip(TENSORS, (out.detach(), dq, dk, dv), strict=True))
    return {name: torch.zeros_like(x) for name, x in named.items()} if kind == "zeros" else named
