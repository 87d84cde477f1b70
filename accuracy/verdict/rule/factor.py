"""Rule 4: a factor. The tensor is a constant times the reference, which a ratio of two errors cannot see: 1.01 is 4.3
times single device's error in bfloat16, and a healthy 16-bit ring may reach 8 in dk.

error_gain is <x, reference> / <reference, reference> - 1. Independent roundings leave it at 0 within its standard error
(5 of them are allowed: 6e-7 of healthy tensors are beyond), a rounding to nearest shifts it by less than u / 8 in
16-bit formats, whose sums are in float32, and by less than 4 u in wider ones. That holds for Gaussian inputs, which
alone are judged: on tied ones equal weights round alike, and partials that cancel enlarge what is left. Healthy
variants and kernels reach 0.03 u in bfloat16, 0.08 u in float16 and 0.3 u in float32 (512 tokens, 8 heads). Beyond the
unit roundoff no rounding mode makes a factor: that is `logic`; less is `biased`. Where the factor is the larger part of
the error this rule speaks before the ladder, which would take it for a cast. lse is left out: kernels' exp and log are
biased themselves (torch's on a CPU: 25 u), and the ladder sees a factor in float32.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.core.probes import REFERENCE_ERROR
from accuracy.core.quantisation import unit_roundoff
from accuracy.verdict.evidence import Evidence, extent
from accuracy.verdict.label import BIASED, LOGIC, Finding
from accuracy.verdict.rows import Rows, mean, typical
from accuracy.verdict.rule.excess import EXACT, INDEPENDENT

STANDARD_ERRORS = 5.0
FEWEST = 32  # heads of tokens: the standard error of fewer is a guess (Student's t: 5 of 31 degrees are 2e-5)
SHORT, WIDE = 1 / 8, 4.0  # unit roundoffs
MOST_OF_IT = math.sqrt(0.5)  # of the error: half of its square


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    return _factor(evidence, MOST_OF_IT)


def judge_hidden(evidence: Evidence) -> Finding | None:
    """A factor that is hidden under the dtype's rounding; asked after the ladder."""
    return _factor(evidence, 0.0)


def _factor(evidence: Evidence, share: float) -> Finding | None:
    rows = next((rows for name, rows, _ in reversed(evidence.by_inputs) if name == INDEPENDENT), None)
    if rows is None or (evidence.effective == EXACT and not share):
        return None
    gain, error = gain_of(rows)
    certain = abs(gain) - STANDARD_ERRORS * error
    heads_of_tokens = evidence.counts(rows)[0].min()
    shown = _is_certain(evidence.tensor, evidence.effective, heads_of_tokens, certain, evidence.quantised)
    if not shown or abs(gain) < share * typical(rows["error_rel"]):
        return None
    text = f"{1 + gain:.7g} times the reference, standard error {error:.1g} ({INDEPENDENT} inputs)"
    label = LOGIC if certain > evidence.unit_roundoff else BIASED
    return Finding(label, text, {"gain": gain, "gain_se": error, "inputs": INDEPENDENT})


def is_scaled(row: Mapping[str, Any]) -> bool:
    """Whether a single row of the table shows a factor."""
    certain = abs(row["error_gain"]) - STANDARD_ERRORS * row["error_gain_se"]
    heads_of_tokens, _ = extent(row, row["tensor"], np.array([row["rank"]]))
    effective = effective_dtype(row["tensor"], row["dtype"])
    quantised = unit_roundoff(str(row["kernel"]), str(row["kernel_options"]))
    return row["inputs"] == INDEPENDENT and _is_certain(
        row["tensor"], effective, heads_of_tokens[0], certain, quantised
    )


def _is_certain(tensor: str, effective: str, heads_of_tokens: float, certain: float, quantised: float) -> bool:
    """The one bound. certain: of the gain, what is beyond its standard errors; quantised: unit roundoff of what the
    kernel quantises. Scores with errors of variance e^2 give weights exp(e^2 / 2) too large, all of one sign."""
    return tensor != "lse" and heads_of_tokens >= FEWEST and bool(certain > max(shift(effective), quantised))


def gain_of(rows: Rows) -> tuple[float, float]:
    """Mean over the seeds and its standard error; NaN where it was not recorded."""
    errors = rows["error_gain_se"]
    seeds = max(1, int(np.count_nonzero(~np.isnan(errors))))
    return mean(rows["error_gain"]), math.sqrt(mean(errors**2) / seeds)


def shift(dtype: str) -> float:
    """What rounding a tensor to nearest in `dtype` may shift its gain by."""
    form = FORMATS[dtype]
    return max((SHORT if form.bytes == 2 else WIDE) * form.unit_roundoff, REFERENCE_ERROR)
