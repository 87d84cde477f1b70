"""A case's results against its yardsticks: every tensor's metrics, errors by token, and significant bits.

In: what the ranks returned. Out: numbers. Tensors are compared one after another in the same memory; their metrics are
made of sums, of all tensors at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from accuracy import condition, metrics
from accuracy.case import Case
from accuracy.distance import Distance, distance
from accuracy.dtype import tensor_dtype
from accuracy.metrics import Array, Sums
from accuracy.rerun.counts import WrongResult
from accuracy.table import TENSORS
from accuracy.world.base import Results
from accuracy.yardsticks import Yardsticks


@dataclass(frozen=True)
class Compared:
    """A tensor's numbers. shape: (W, B, S/W, heads[, D]); columns: `metrics.metric_columns`; apart: from the truth;
    significand_bits: (W + 1,)."""

    shape: torch.Size
    columns: dict[str, Array]
    apart: Distance
    significand_bits: Array


@dataclass(frozen=True)
class _Apart:
    """How far a tensor is from the truth and from the one-shot kernel's."""

    truth: Distance
    one_shot: Sums
    bits: Array


def compare(case: Case, yardsticks: Yardsticks, results: Sequence[Results]) -> dict[str, Compared]:
    """Each tensor that the ranks returned, by name. Raises WrongResult where one has another shape or dtype."""
    apart = {name: _apart(case, yardsticks, name, x) for name, x in _in_turn(case, yardsticks, results)}
    together = metrics.metric_columns(
        error=metrics.of_tensors([each.truth.sums for each in apart.values()]),
        diff=metrics.of_tensors([each.one_shot for each in apart.values()]),
        one_shot=metrics.of_tensors([yardsticks.one_shot_sums(case, name) for name in apart]),
        floor=metrics.of_tensors([yardsticks.floor_sums(case, name) for name in apart]),
        ulp=np.array([each.truth.ulp for each in apart.values()]),
    )
    found = {}
    for number, (name, each) in enumerate(apart.items()):
        truth = yardsticks.truth_target(case, name).values
        columns = {column: values[number] for column, values in together.items()}
        if case.conditions:
            columns |= condition.columns(case, yardsticks.magnitudes(case.problem), name, truth)
        found[name] = Compared(truth.shape, columns, each.truth, each.bits)
    return found


def _apart(case: Case, yardsticks: Yardsticks, name: str, x: Tensor) -> _Apart:
    dtype, room = tensor_dtype(name, case.dtype), yardsticks.room
    bits = metrics.significand_bits(x, "float64" if name == "delta" else dtype)
    return _Apart(
        distance(x, yardsticks.truth_target(case, name), ulp_dtype=dtype, room=room),
        distance(x, yardsticks.one_shot_target(case, name), signed=False, room=room).sums,
        metrics.appended(bits, bits.max(keepdims=True)),
    )


def _in_turn(case: Case, yardsticks: Yardsticks, results: Sequence[Results]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor that there is, (W, B, S/W, heads[, D]) in float64, until the next is asked for.

    delta is what the ranks' stored out makes it, as in `yardsticks.in_token_layout`.
    """
    room, delta = yardsticks.room, None
    for name, ranks in zip(TENSORS, zip(*results, strict=True), strict=False):
        given = [x for x in ranks if x is not None]
        if not given:
            continue
        if len(given) < len(ranks):
            raise RuntimeError(f"only some ranks returned {name}")
        _check(case, name, given, yardsticks.truth_target(case, name).values)
        stacked = room.stacked(given, "result")
        if name == "out":
            delta = torch.mul(yardsticks.dout(case), stacked, out=room.like(stacked, "scratch")).sum(-1)
        yield name, stacked.transpose(-1, -2) if name == "lse" else stacked
    if delta is not None:
        yield "delta", delta


def _check(case: Case, name: str, ranks: Sequence[Tensor], truth: Tensor) -> None:
    """A wrong shape or dtype is a fault of the variant, not something to broadcast or cast away."""
    expected = tensor_dtype(name, case.dtype)
    for x in ranks:
        shape = torch.Size([len(ranks), *(x.transpose(-1, -2) if name == "lse" else x).shape])
        if shape != truth.shape or x.dtype != getattr(torch, expected):
            raise WrongResult(
                f"{name} came as {tuple(shape)} {x.dtype}, expected {tuple(truth.shape)} {expected} (ranks first)"
            )
