"""Stacks measured: the reference and the targets once for all cases that share them, then case by case its rows.

reference: the whole stack in float64 on the same rounded weights; single device: in the case's dtype with the case's
kernel run once; exact: in the case's dtype with attention from the reference, so that only the rest of the stack rounds
much.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS
from accuracy.measure import provenance
from accuracy.results.layers import METRICS
from accuracy.results.table import FAILED, OK, UNSUPPORTED, Row
from accuracy.runtime import device as devices
from accuracy.simulate.program import build_kernel
from accuracy.stack.attention import Exact, Halves, NoGradients, Ranks
from accuracy.stack.case import StackCase
from accuracy.stack.layers import DIFFERENTIATED, Quantity, walk
from accuracy.stack.weights import Model, model_of

Place = tuple[int, str]
Errors = dict[Place, dict[str, float]]


@dataclass(frozen=True)
class Targets:
    """reference: of float64, see `_kept`; single_device: its quantities; errors: to the reference; exact_diff: exact to
    single device."""

    model: Model
    reference: dict[Place, Tensor]
    single_device: dict[Place, Tensor]
    single_device_errors: Errors
    exact_errors: Errors
    exact_diff: Errors


class Measurer:
    """Measures cases one after another; keeps the targets of the last."""

    def __init__(self, experiment: str, batched: bool = True) -> None:
        self.experiment = experiment
        self.batched = batched
        self._kept: tuple[object, Targets] | None = None

    def measure(self, each: StackCase) -> list[Row]:
        """A case's rows; whatever goes wrong becomes one row with the reason."""
        if each.unsupported:
            return [self._about(each, UNSUPPORTED, each.unsupported)]
        try:
            targets = self._targets(each)
            begin = time.perf_counter()
            kernel = build_kernel(each.case)
            return list(self._rows(each, targets, Ranks(each.case, kernel, self.batched), begin))
        except NoGradients as error:
            return [self._about(each, UNSUPPORTED, str(error))]
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            out_of_memory = isinstance(error.__cause__ or error, torch.OutOfMemoryError)
        if out_of_memory:  # only here, where the error no longer holds the tensors
            self._kept = None
            torch.cuda.empty_cache()
        return [self._about(each, FAILED, reason)]

    def _about(self, each: StackCase, status: str, reason: str) -> dict[str, object]:
        about = {**each.case.identity(), **each.stack.identity(), "case_id": each.id, "experiment": self.experiment}
        code = provenance.code_of(each.case)
        return {**about, "device": devices.name(each.case.device), "code": code, "status": status, "reason": reason}

    def _rows(self, each: StackCase, targets: Targets, halves: Halves, begin: float) -> Iterator[Row]:
        about = self._about(each, OK, "")
        found = list(_compared(_quantities(each, targets.model, halves, each.case.dtype), targets))
        seconds = time.perf_counter() - begin
        broken = next((place for place, numbers in found if numbers["nonfinite"]), None)
        if broken:
            about |= {"status": FAILED, "reason": f"non-finite values, first in {broken[1]} of layer {broken[0]}"}
        for place, numbers in found:
            errors = {
                "single_device_rel": targets.single_device_errors[place]["error_rel"],
                "exact_rel": targets.exact_errors[place]["error_rel"],
                "exact_diff_rel": targets.exact_diff[place]["error_rel"],
            }
            ratios = {
                "x_single_device": _ratio(numbers["error_rel"], errors["single_device_rel"]),
                "x_exact": _ratio(numbers["error_rel"], errors["exact_rel"]),
            }
            values = {name: value for name, value in {**numbers, **errors, **ratios}.items() if name in METRICS}
            counts = {"nonfinite": int(numbers["nonfinite"]), "seconds": seconds}
            yield {**about, "layer": place[0], "tensor": place[1], **values, **counts}

    def _targets(self, each: StackCase) -> Targets:
        if self._kept is None or self._kept[0] != each.shared:
            self._kept = None  # free the old ones first
            self._kept = each.shared, _targets(each)
        return self._kept[1]


def _targets(each: StackCase) -> Targets:
    case = each.case
    model = model_of(case, each.stack)
    reference = {(x.layer, x.tensor): _kept(x.value, case) for x in _quantities(each, model, Exact(case), "float64")}
    single_device = {}
    single_device_errors: Errors = {}
    for x in _quantities(each, model, Ranks(each.single_device, build_kernel(each.single_device)), case.dtype):
        place = x.layer, x.tensor
        single_device[place], single_device_errors[place] = x.value, _error(x.value, reference[place])
    exact_errors: Errors = {}
    exact_diff: Errors = {}
    for x in _quantities(each, model, Exact(case), case.dtype):
        place = x.layer, x.tensor
        exact_errors[place] = _error(x.value, reference[place])
        exact_diff[place] = _error(x.value, single_device[place])
    return Targets(model, reference, single_device, single_device_errors, exact_errors, exact_diff)


def _kept(reference: Tensor, case: Case) -> Tensor:
    """For 16-bit stacks in float32, half the memory: its 2^-24 is far below the 2^-11 of one rounding there."""
    return reference.float() if FORMATS[case.dtype].bytes == 2 and reference.ndim else reference


def _quantities(each: StackCase, model: Model, halves: Halves, dtype: str) -> Iterator[Quantity]:
    """Those of a walk, and last the norm of all compared gradients together, as a training run watches it."""
    squares = 0.0
    working = getattr(torch, dtype)
    for x in walk(model, each.stack, halves, working, each.case.problem.head_dim):
        if x.tensor.removeprefix("d_") in DIFFERENTIATED:
            squares += float(torch.linalg.vector_norm(x.value, dtype=torch.float64)) ** 2
        yield x
    yield Quantity(each.stack.layers, "gradient_norm", torch.tensor(math.sqrt(squares), dtype=torch.float64))


def _compared(quantities: Iterator[Quantity], targets: Targets) -> Iterator[tuple[Place, dict[str, float]]]:
    for x in quantities:
        place = x.layer, x.tensor
        diff = _error(x.value, targets.single_device[place])["error_rel"]
        yield place, {**_error(x.value, targets.reference[place]), "diff_rel": diff}


def _error(x: Tensor, reference: Tensor) -> dict[str, float]:
    """Total: a norm of 0 in the reference gives 0 for an error of 0, else infinity; NaN is infinitely wrong."""
    x, reference = x.double(), reference.double()
    value, norm, error = (float(torch.linalg.vector_norm(each)) for each in (x, reference, x - reference))
    product = float((x * reference).sum())
    scalar = x.ndim == 0
    return {
        "error_rel": _ratio(error, norm),
        "cosine": product / (value * norm) if value * norm > 0 else math.nan,
        "value": float(x) if scalar else value,
        "reference_value": float(reference) if scalar else norm,
        "nonfinite": float((~x.isfinite()).sum()),
    }


def _ratio(part: float, whole: float) -> float:
    if math.isnan(part):
        return math.inf
    return part / whole if whole > 0 else (0.0 if part == 0 else math.inf)
