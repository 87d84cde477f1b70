"""Stacks measured: the reference and the targets once for all stacks that share them, then the rows of each."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accuracy.config.read import Configuration
from accuracy.core.case import Case, Part, Variant
from accuracy.core.dtype import FORMATS
from accuracy.core.errors import one_line
from accuracy.measurement.pipeline import about_case
from accuracy.results.derived import ratio
from accuracy.results.table import FAILED, OK, UNSUPPORTED, Row
from accuracy.runtime import arithmetic
from accuracy.simulate.program import build_kernel
from accuracy.variant import single_device
from experiments.depth.attention import Exact, Halves, Ranks
from experiments.depth.layers import DIFFERENTIATED, Quantity, quantities
from experiments.depth.plan import Planned, Stack
from experiments.depth.weights import Model, model_of

Place = tuple[int, str]
"""A layer, and the name of a tensor there."""

SINGLE_DEVICE = Variant("single_device", "contiguous", *2 * (Part("single_device", single_device.__name__),))


@dataclass(frozen=True)
class StackTargets:
    """What a stack is compared with. reference: the whole stack in float64 on the same rounded weights;
    single device: in the case's dtype with the case's kernel run once; exact: in the case's dtype with attention from
    the reference, so that only the rest of the stack rounds much. Relative errors to the reference; exact_diff from
    single device."""

    model: Model
    reference: dict[Place, Tensor]
    single_device: dict[Place, Tensor]
    single_device_rel: dict[Place, float]
    exact_rel: dict[Place, float]
    exact_diff_rel: dict[Place, float]


class Measurer:
    """Measures stacks one after another, and keeps the targets that neighbours share. own: the digest of this code."""

    def __init__(self, configuration: Configuration, own: str) -> None:
        self.configuration, self.own = configuration, own
        self._targets: tuple[object, StackTargets] | None = None

    def measure(self, each: Planned) -> list[Row]:
        """Return the rows of a stack; whatever goes wrong becomes a row with the reason."""
        if each.unsupported:
            return [self._about(each, UNSUPPORTED, each.unsupported)]
        try:
            with arithmetic.random_state_restored():
                return self._measured(each)
        except Exception as error:  # one stack's failure does not end the run
            failed = self._about(each, FAILED, one_line(error))
        self._targets = None
        torch.cuda.empty_cache()
        return [failed]

    def _about(self, each: Planned, status: str, reason: str) -> dict[str, Any]:
        about = about_case(each.case, self.configuration.name, status, reason)
        return {**about, **vars(each.stack), "case_id": each.id, "code": f"{about['code']}+{self.own}"}

    def _measured(self, each: Planned) -> list[Row]:
        case, stack = each.case, each.stack
        if self._targets is None or self._targets[0] != each.shared:
            self._targets = None  # free the old ones first
            self._targets = each.shared, _targets(case, stack)
        targets = self._targets[1]
        begin = time.perf_counter()
        halves = Ranks(case, build_kernel(case), self.configuration.batched)
        rows = list(_rows(_quantities(case, stack, targets.model, halves, case.dtype), targets))
        seconds = time.perf_counter() - begin
        broken = next((row for row in rows if row["nonfinite"]), None)
        reason = f"non-finite values, first in {broken['tensor']} of layer {broken['layer']}" if broken else ""
        about = self._about(each, FAILED if broken else OK, reason) | {"seconds": seconds}
        return [about | dict(row) for row in rows]


def _targets(case: Case, stack: Stack) -> StackTargets:
    model, exact, policy = model_of(case, stack), Exact(case), single_device.SCHEDULE.precision
    alone = replace(
        case, variant=SINGLE_DEVICE, world_size=1, precision_text="", forward_precision=policy,
        backward_precision=policy,
    )  # fmt: skip
    wanted = _quantities(case, stack, model, exact, "float64")
    # for 16-bit stacks in float32, half the memory: its 2^-24 is far below the 2^-11 of one rounding there
    small = FORMATS[case.dtype].bytes == 2
    reference = {(layer, tensor): x.float() if small and x.ndim else x for layer, tensor, x in wanted}
    targets = StackTargets(model, reference, {}, {}, {}, {})
    for layer, tensor, x in _quantities(case, stack, model, Ranks(alone, build_kernel(alone)), case.dtype):
        targets.single_device[layer, tensor] = x
        targets.single_device_rel[layer, tensor] = _relative(x, reference[layer, tensor])
    for layer, tensor, x in _quantities(case, stack, model, exact, case.dtype):
        targets.exact_rel[layer, tensor] = _relative(x, reference[layer, tensor])
        targets.exact_diff_rel[layer, tensor] = _relative(x, targets.single_device[layer, tensor])
    return targets


def _quantities(case: Case, stack: Stack, model: Model, halves: Halves, dtype: str) -> Iterator[Quantity]:
    """Those of all layers, and last the norm of all compared gradients together, as a training run watches it."""
    squares = 0.0
    for x in quantities(model, stack, halves, getattr(torch, dtype), case.problem.head_dim):
        if x.tensor.removeprefix("d_") in DIFFERENTIATED:
            squares += float(torch.linalg.vector_norm(x.value, dtype=torch.float64)) ** 2
        yield x
    yield Quantity(stack.layers, "gradient_norm", torch.tensor(math.sqrt(squares), dtype=torch.float64))


def _rows(found: Iterator[Quantity], targets: StackTargets) -> Iterator[Row]:
    """Yield what differs from row to row; see `METRICS` of the table."""
    for layer, tensor, x in found:
        place = layer, tensor
        x, reference = x.double(), targets.reference[place].double()
        value, norm, scalar = _norm(x), _norm(reference), x.ndim == 0
        error_rel = _relative(x, reference)
        yield {
            "layer": layer,
            "tensor": tensor,
            "error_rel": error_rel,
            "single_device_rel": targets.single_device_rel[place],
            "exact_rel": targets.exact_rel[place],
            "x_single_device": _ratio(error_rel, targets.single_device_rel[place]),
            "x_exact": _ratio(error_rel, targets.exact_rel[place]),
            "diff_rel": _relative(x, targets.single_device[place]),
            "exact_diff_rel": targets.exact_diff_rel[place],
            "value": float(x) if scalar else value,
            "reference_value": float(reference) if scalar else norm,
            "nonfinite": int((~x.isfinite()).sum()),
        }


def _relative(x: Tensor, reference: Tensor) -> float:
    reference = reference.double()
    return _ratio(_norm(x.double() - reference), _norm(reference))


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _ratio(part: float, below: float) -> float:
    """Total: 0 / 0 is 0, and NaN is infinitely wrong."""
    if math.isnan(part) or math.isnan(below):
        return math.inf
    return float(ratio(np.array(part), np.array(below), zero_by_zero=0.0))
