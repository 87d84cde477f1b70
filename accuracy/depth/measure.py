"""Stacks measured: the truth and the yardsticks once for all cases that share them, then case by case its rows.

truth: the whole stack in float64 on the same rounded weights; one-shot: in the case's dtype with the case's kernel run
once; exact: in the case's dtype with attention from the reference, so that only the rest of the stack rounds much.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy import device as devices
from accuracy import provenance
from accuracy.case import Case
from accuracy.depth.attention import Exact, Halves, NoGradients, Ranks
from accuracy.depth.case import StackCase
from accuracy.depth.table import METRICS
from accuracy.depth.walk import DIFFERENTIATED, Quantity, walk
from accuracy.depth.weights import Model, model_of
from accuracy.dtype import FORMATS
from accuracy.program import build_kernel
from accuracy.table import DECLINED, FAILED, OK, Row

Place = tuple[int, str]
Errors = dict[Place, dict[str, float]]


@dataclass(frozen=True)
class Yardsticks:
    """truth: of float64, see `_kept`; one_shot: its quantities; errors: to the truth; exact_diff: exact to one-shot."""

    model: Model
    truth: dict[Place, Tensor]
    one_shot: dict[Place, Tensor]
    one_shot_errors: Errors
    exact_errors: Errors
    exact_diff: Errors


class Measurer:
    """Measures cases one after another; keeps the yardsticks of the last."""

    def __init__(self, experiment: str) -> None:
        self.experiment = experiment
        self._kept: tuple[object, Yardsticks] | None = None

    def measure(self, each: StackCase) -> list[Row]:
        """A case's rows; whatever goes wrong becomes one row with the reason."""
        if each.decline:
            return [self._about(each, DECLINED, each.decline)]
        try:
            yardsticks = self._yardsticks(each)
            begin = time.perf_counter()
            kernel = build_kernel(each.case)
            return list(self._rows(each, yardsticks, Ranks(each.case, kernel), begin))
        except NoGradients as error:
            return [self._about(each, DECLINED, str(error))]
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

    def _rows(self, each: StackCase, yardsticks: Yardsticks, halves: Halves, begin: float) -> Iterator[Row]:
        about = self._about(each, OK, "")
        found = list(_compared(_quantities(each, yardsticks.model, halves, each.case.dtype), yardsticks))
        seconds = time.perf_counter() - begin
        broken = next((place for place, numbers in found if numbers["nonfinite"]), None)
        if broken:
            about |= {"status": FAILED, "reason": f"non-finite values, first in {broken[1]} of layer {broken[0]}"}
        for place, numbers in found:
            errors = {
                "one_shot_rel": yardsticks.one_shot_errors[place]["error_rel"],
                "exact_rel": yardsticks.exact_errors[place]["error_rel"],
                "exact_diff_rel": yardsticks.exact_diff[place]["error_rel"],
            }
            ratios = {
                "x_one_shot": _ratio(numbers["error_rel"], errors["one_shot_rel"]),
                "x_exact": _ratio(numbers["error_rel"], errors["exact_rel"]),
            }
            values = {name: value for name, value in {**numbers, **errors, **ratios}.items() if name in METRICS}
            counts = {"nonfinite": int(numbers["nonfinite"]), "seconds": seconds}
            yield {**about, "layer": place[0], "tensor": place[1], **values, **counts}

    def _yardsticks(self, each: StackCase) -> Yardsticks:
        if self._kept is None or self._kept[0] != each.shared:
            self._kept = None  # free the old ones first
            self._kept = each.shared, _yardsticks(each)
        return self._kept[1]


def _yardsticks(each: StackCase) -> Yardsticks:
    case = each.case
    model = model_of(case, each.stack)
    truth = {(x.layer, x.tensor): _kept(x.value, case) for x in _quantities(each, model, Exact(case), "float64")}
    one_shot = {}
    one_shot_errors: Errors = {}
    for x in _quantities(each, model, Ranks(each.one_shot, build_kernel(each.one_shot)), case.dtype):
        place = x.layer, x.tensor
        one_shot[place], one_shot_errors[place] = x.value, _error(x.value, truth[place])
    exact_errors: Errors = {}
    exact_diff: Errors = {}
    for x in _quantities(each, model, Exact(case), case.dtype):
        place = x.layer, x.tensor
        exact_errors[place] = _error(x.value, truth[place])
        exact_diff[place] = _error(x.value, one_shot[place])
    return Yardsticks(model, truth, one_shot, one_shot_errors, exact_errors, exact_diff)


def _kept(truth: Tensor, case: Case) -> Tensor:
    """For 16-bit stacks in float32, half the memory: its 2^-24 is far below the 2^-11 of one rounding there."""
    return truth.float() if FORMATS[case.dtype].bytes == 2 and truth.ndim else truth


def _quantities(each: StackCase, model: Model, halves: Halves, dtype: str) -> Iterator[Quantity]:
    """Those of a walk, and last the norm of all compared gradients together, as a training run watches it."""
    squares = 0.0
    working = getattr(torch, dtype)
    for x in walk(model, each.stack, halves, working, each.case.problem.head_dim):
        if x.tensor.removeprefix("d_") in DIFFERENTIATED:
            squares += float(torch.linalg.vector_norm(x.value, dtype=torch.float64)) ** 2
        yield x
    yield Quantity(each.stack.layers, "gradient_norm", torch.tensor(math.sqrt(squares), dtype=torch.float64))


def _compared(quantities: Iterator[Quantity], yardsticks: Yardsticks) -> Iterator[tuple[Place, dict[str, float]]]:
    for x in quantities:
        place = x.layer, x.tensor
        diff = _error(x.value, yardsticks.one_shot[place])["error_rel"]
        yield place, {**_error(x.value, yardsticks.truth[place]), "diff_rel": diff}


def _error(x: Tensor, truth: Tensor) -> dict[str, float]:
    """Total: a norm of 0 in the truth gives 0 for an error of 0, else infinity; NaN is infinitely wrong."""
    x, truth = x.double(), truth.double()
    value, norm, error = (float(torch.linalg.vector_norm(each)) for each in (x, truth, x - truth))
    product = float((x * truth).sum())
    scalar = x.ndim == 0
    return {
        "error_rel": _ratio(error, norm),
        "cosine": product / (value * norm) if value * norm > 0 else math.nan,
        "value": float(x) if scalar else value,
        "truth_value": float(truth) if scalar else norm,
        "nonfinite": float((~x.isfinite()).sum()),
    }


def _ratio(part: float, whole: float) -> float:
    if math.isnan(part):
        return math.inf
    return part / whole if whole > 0 else (0.0 if part == 0 else math.inf)
