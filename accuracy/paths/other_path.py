"""The path that a case is compared with, run on the case's inputs: its tensors of all tokens, and the numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from accuracy.bound.policy import COARSE_LOGARITHM, FAST_EXPONENTIAL
from accuracy.core import plugins
from accuracy.core.case import Case
from accuracy.core.dtype import FORMATS, INPUT_FORMATS, accumulation_dtype, held
from accuracy.core.quantisation import FORMATS as LOW_FORMATS
from accuracy.inputs.drawing import Inputs
from accuracy.kernel import eager
from accuracy.measurement import metrics
from accuracy.measurement.compare import joined
from accuracy.measurement.observe import Answer, Observation
from accuracy.measurement.pipeline import position_bins
from accuracy.measurement.reruns import run_alone
from accuracy.measurement.targets import Named, Targets
from accuracy.paths import drift
from accuracy.runtime.rounding import by_heads
from accuracy.runtime.sharding import cut, sharding_of, token_map

EIGHT_BITS = "quantised"
HEALTHY = plugins.default_part(eager.__name__)


def answer(observation: Observation, options: None) -> Answer:
    """Of each tensor that both paths have: its columns of the table, by ranks, and those of positions, by bins."""
    case, targets = observation.case, observation.targets
    a, b = joined(case, observation.results), run(case.other, targets.given.tensors)
    healthy, natural = _healthy(case, targets), targets.natural(case.problem)
    by_rank, by_bin = {}, {}
    for name in [each for each in a if each in b]:
        reference, length = targets.reference[name], case.problem.length(name)
        rows = drift.rows_of(name, case.dtype, a[name], b[name], reference, healthy[name], natural[name])
        tokens = [each[each < length].numpy() for each in token_map(sharding_of(case), length, case.world_size)]
        by_rank[name] = drift.rank_columns(rows, tokens)
        by_bin[name] = drift.bin_columns(rows, position_bins(length))
    return Answer(by_rank, by_bin)


def _healthy(case: Case, targets: Targets) -> Named:
    """Return what a healthy path may give: eager's tensors, or, farther off, a path's own kernel run once, or eager on
    keys and values that a path's wire or cache keeps in 8 bits. A kernel is asked that casts to 8 bits, and for lse one
    whose exp or log is a coarse one, no farther than such a function errs."""
    found = dict(targets.single_device(replace(case, kernel=HEALTHY)))
    wide = accumulation_dtype(case.dtype)
    coarse = COARSE_LOGARITHM if wide == held(case.dtype) else FAST_EXPONENTIAL
    for kernel in {case.kernel, case.other.kernel} - {HEALTHY}:
        own = targets.single_device(replace(case, kernel=kernel))
        if kernel.name == EIGHT_BITS:
            _widen(found, own, targets.reference, math.inf)
        elif "lse" in own:
            _widen(found, {"lse": own["lse"]}, targets.reference, coarse * FORMATS[wide].unit_roundoff)
    for word in {path.forward_precision.wire for path in (case, case.other)} & {*INPUT_FORMATS}:
        q, k, v, dout = targets.given.tensors
        k, v = (by_heads(x, LOW_FORMATS[INPUT_FORMATS[word]]) for x in (k, v))
        cached = Inputs(q, k, v, dout)
        own = replace(targets, given=cached, single_devices={}).single_device(replace(case, kernel=HEALTHY))
        _widen(found, own, targets.reference, math.inf)
    return found


def _widen(found: Named, own: Named, reference: Named, most: float) -> None:
    """Where `own` errs more than what was found, take it, its error at most `most`."""
    for name in {*drift.TENSORS} & {*own}:
        exact = reference[name]
        error, more = (metrics.error_of(x[name], exact) for x in (found, own))
        found[name] = exact + torch.where(more.abs() > error.abs(), more.clamp(-most, most), error)


def run(case: Case, tensors: Sequence[Tensor]) -> Named:
    """Run all ranks on the whole q, k, v, dout in this process, a function alone in its group; return what they gave,
    as `joined` has it."""
    layout = sharding_of(case), case.world_size
    shards = list(zip(*(cut(x, *layout) for x in tensors), strict=True))
    return joined(case, run_alone(case, shards).results)
