"""How far are out, dq, dk and dv of a schedule from float64: all ranks together, the worst rank, single rows?

A row is a head of a token. All errors are norms over the norm of the reference; a row of nearly no size is held to a
thousandth of the tensor's root mean square row."""

from typing import NamedTuple

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.inputs.drawing import Inputs
from accuracy.reference import choice
from accuracy.runtime.sharding import cut
from accuracy.simulate.program import build_kernel
from experiments.depth.attention import Ranks

TENSORS = ("out", "dq", "dk", "dv")
SMALLEST = 1e-6  # of the mean square of a row
QUANTILES = {"median": 0.5, "999": 0.999, "worst": 1.0}
Named = dict[str, Tensor]


class Rows(NamedTuple):
    """Squares of each row, (B, S, heads): of the error and of the reference."""

    error: Tensor
    size: Tensor

    def relative(self) -> float:
        """Return the relative error of all rows together."""
        return float((self.error.sum() / self.size.sum()).sqrt())

    def of_ranks(self, sharding: str, ranks: int) -> Tensor:
        """Return the relative error of each rank's tokens, (W,)."""
        error, size = (cut(x, sharding, ranks).flatten(1).sum(1) for x in self)
        return (error / size).sqrt()

    def quantiles(self) -> dict[str, float]:
        """Return quantiles of the rows' relative errors."""
        relative = (self.error / self.size.clamp(min=SMALLEST * float(self.size.mean()))).sqrt().flatten()
        return {name: float(relative.quantile(at)) for name, at in QUANTILES.items()}


def computed(case: Case, inputs: Inputs) -> Named:
    """Return what the case's schedule makes of q, k, v and dout, its ranks joined."""
    halves = Ranks(case, build_kernel(case))
    out, saved = halves.forward(inputs.q, inputs.k, inputs.v)
    gradients = halves.backward(inputs.dout, inputs.q, inputs.k, inputs.v, saved)
    return dict(zip(TENSORS, (out, *gradients), strict=True))


def exact(case: Case, inputs: Inputs) -> Named:
    """Return the float64 reference."""
    found = choice.compute(choice.choose(case.problem, case.device, "auto"), case.problem, inputs, case.seed)
    return {name: getattr(found, name) for name in TENSORS}


def rows_of(x: Tensor, reference: Tensor) -> Rows:
    """x and reference: (B, S, heads, D)."""
    return Rows((x.double() - reference).square().sum(-1), reference.square().sum(-1))


def columns(case: Case, x: Tensor, one: Tensor, reference: Tensor) -> dict[str, float]:
    """Return a tensor's numbers. one: what the same kernel gives, run once over all tokens."""
    its, alone, floor = (rows_of(each, reference) for each in (x, one, reference.to(x.dtype)))
    layout = case.variant.sharding, case.world_size
    of_ranks = its.of_ranks(*layout) / alone.of_ranks(*layout)
    found = {"error_rel": its.relative(), "single_device_rel": alone.relative(), "floor_rel": floor.relative()}
    found |= {"x_worst_rank": float(of_ranks.max())}
    found |= {f"row_{name}": value for name, value in its.quantiles().items()}
    return found | {f"single_device_row_{name}": value for name, value in alone.quantiles().items()}


def facts(inputs: Inputs, scale: float) -> dict[str, float]:
    """Return what the inputs are like: of all queries but the first tenth, the mean weight of the first key and of the
    largest one; the largest score; the root mean square of the largest channel of keys over that of all, of the worst
    head."""
    _, length, heads, _ = inputs.q.shape
    group, late = heads // inputs.k.shape[2], length // 10
    first, largest, score = [], [], []
    seen = torch.ones(length, length, dtype=torch.bool, device=inputs.q.device).tril()[late:]
    for head in range(heads):
        q, k = inputs.q[0, late:, head].float(), inputs.k[0, :, head // group].float()
        scores = (scale * q @ k.T).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1)
        first.append(weights[:, 0].mean())
        largest.append(weights.amax(-1).mean())
        score.append(scores.amax())
    square = inputs.k.float().square().mean((0, 1))  # (Hk, D)
    channel = (square.amax(1) / square.mean(1)).sqrt().amax()
    several = {"first_key": first, "largest_key": largest}
    return {
        **{name: float(torch.stack(each).mean()) for name, each in several.items()},
        "largest_score": float(torch.stack(score).amax()), "largest_channel": float(channel),
    }  # fmt: skip
