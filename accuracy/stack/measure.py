"""Stacks measured: the reference and the targets once for all cases that share them, then case by case its rows."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from accuracy.core.case import Case, Part, Stack, Variant
from accuracy.core.dtype import FORMATS
from accuracy.measurement.pipeline import Measured, Pipeline, about_case
from accuracy.results.derived import ratio
from accuracy.results.table import FAILED, OK, Row
from accuracy.simulate.program import build_kernel
from accuracy.stack import logprobs
from accuracy.stack.attention import Exact, Halves, Ranks
from accuracy.stack.layers import DIFFERENTIATED, Quantity, quantities
from accuracy.stack.weights import Model, model_of
from accuracy.variant import single_device

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


def measured(pipeline: Pipeline, case: Case) -> Measured:
    """Return the rows of a case that has a stack."""
    stack = case.stack
    assert stack is not None
    method = pipeline.reference_cache.method_for(case.problem, case.device)
    targets = pipeline.shared_targets(case, lambda: _targets(case, stack, method))
    begin = time.perf_counter()
    halves = Ranks(case, build_kernel(case), pipeline.batched)
    rows = list(_rows(_quantities(case, stack, targets.model, halves, case.dtype), targets))
    broken = next((row for row in rows if row["nonfinite"]), None)
    reason = f"non-finite values, first in {broken['tensor']} of layer {broken['layer']}" if broken else ""
    about = {
        **about_case(case, pipeline.experiment, FAILED if broken else OK, reason),
        "reference": method,
        "seconds": time.perf_counter() - begin,
    }
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    results = {**{name: [value] * len(rows) for name, value in about.items()}, **columns}
    return Measured(results, {}, tables={"logprobs": logprobs.rows(case, stack, targets.model, method)})


def _targets(case: Case, stack: Stack, method: str) -> StackTargets:
    model, exact, policy = model_of(case, stack), Exact(case, method), single_device.SCHEDULE.precision
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
    """Yield what differs from row to row; see `METRICS_OF_STACKS` of the table."""
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
            "cosine": float((x * reference).sum()) / (value * norm) if value * norm > 0 else math.nan,
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
