"""Errors that point one way: a constant factor, and a bias.

A factor: the tensor is a constant times the reference, which a ratio of two errors cannot see: 1.01 is 4.3 times single
device's error in bfloat16, and a healthy 16-bit ring may reach 8 in dk. error_gain is
<x, reference> / <reference, reference> - 1. Independent roundings leave it at 0 within its standard error (5 of them
are allowed: 6e-7 of healthy tensors are beyond), a rounding to nearest shifts it by less than u / 8 in 16-bit formats,
whose sums are in float32, and by less than 4 u in wider ones. That holds for Gaussian inputs, which alone are judged:
on tied ones equal weights round alike, and partials that cancel enlarge what is left. Beyond the unit roundoff no
rounding mode makes a factor: that is `logic`; less is `biased`. Where the factor is the larger part of the error this
rule speaks before the ladder, which would take it for a cast. lse is left out: kernels' exp and log are biased
themselves, and the ladder sees a factor in float32.

A bias: rounding to nearest has no side; a bias adds up over layers where rounding averages out. Asked before the
error's size: a large bias is an excess too, but names the cause. Two signed means: of the error, and of the error away
from zero (error x sign of the reference, so that a shrunken result shows whatever its sign). The unit of the test is
the seed: Student's t over at least 4 seeds must pass the 99.9% quantile (12.9 for 4 seeds), and the mean must be at
least a tenth of the error's root mean square, so that it matters. Single device's bias on the same inputs is the
kernel's, not the schedule's: only the bias beyond it counts. Of a user's dq and dk in float32 a bias is none that their
own gain of at most 2 u makes: a function with exp2 multiplies scores by scale log2 e, which is rounded once, and so
does the gradient, which is multiplied by ln 2, too (1.3 u at a scale of 0.2, measured). A gain g makes the mean error g
mean |reference|, at most |g| times the reference's root mean square. lse is left out here too. Of a user's function a
bias on tied inputs alone is a fact, and no fault: it has a kernel that rounds the weights of the softmax to 16 bits, as
flash kernels do, or dk and dv of heads before their sum.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import stdtrit

from accuracy.core import fields
from accuracy.core.dtype import EIGHT_BITS, REFERENCE_ERROR, computed_in, effective_dtype, form_of
from accuracy.core.quantisation import unit_roundoff
from accuracy.results.table import ALL_RANKS
from accuracy.verdict import inside
from accuracy.verdict.evidence import INDEPENDENT, Evidence, extent
from accuracy.verdict.label import BIASED, LOGIC, PRECISION_FLOOR, Finding
from accuracy.verdict.rows import Rows, mean, typical

STANDARD_ERRORS = 5.0
FEWEST_ROWS = 32  # heads of tokens: the standard error of fewer is a guess (Student's t: 5 of 31 degrees are 2e-5)
SHORT, WIDE = 1 / 8, 4.0  # unit roundoffs
CUT = "tf32_cut"
UNITS = {CUT: 2.0, **dict.fromkeys(EIGHT_BITS, 0.41)}
"""Four operands on the way to dq and dk lose up to half a unit roundoff of themselves each, in the mean, where digits
are cut off, as P may beside 16-bit inputs. The error of a value in 8 bits is one that all rows share: of few tokens it
is no mean of many."""
MOST_OF_IT = math.sqrt(0.5)  # of the error: half of its square
FEWEST_SEEDS = 4
LEVEL = 0.999
SHARE = 0.1
DEVIATIONS = 3.3
OF_SCALES = 2.0  # unit roundoffs: of scale times log2 e, and of ln 2
SIDES = {  # column of the error -> single device's, and what a value below and above zero means
    "error_bias": ("single_device_bias", "too small", "too large"),
    "error_outward": ("single_device_outward", "too near zero", "too far from zero"),
}


def leading_factor(evidence: Evidence) -> Finding | None:
    """A factor that is the larger part of the error; see `accuracy.verdict.verdict`."""
    return _factor(evidence, MOST_OF_IT)


def hidden_factor(evidence: Evidence) -> Finding | None:
    """A factor that is hidden under the dtype's rounding; asked after the ladder."""
    return _factor(evidence, 0.0)


def _factor(evidence: Evidence, share: float) -> Finding | None:
    rows = next((rows for name, rows, _ in reversed(evidence.by_inputs) if name == INDEPENDENT), None)
    if rows is None or (evidence.effective == "float64" and not share):
        return None
    gain, error = gain_of(rows)
    certain = abs(gain) - STANDARD_ERRORS * error
    rows_of_tensor = evidence.counts(rows)[0].min()
    effective = CUT if evidence.arithmetic == CUT else evidence.effective
    shown = _is_certain(evidence.tensor, effective, rows_of_tensor, certain, evidence.quantised)
    if not shown or abs(gain) < share * typical(rows["error_rel"]):
        return None
    if gain < 0 and certain <= by_sums_cut_off(evidence):
        return Finding(PRECISION_FLOOR, "sums_cut", {inside.MARK: inside.SUMS, "gain": gain, "floor": inside.FORMAT})
    label = LOGIC if certain > evidence.unit_roundoff else BIASED
    return Finding(label, "factor", {"gain": gain, "gain_se": error, "factor": 1 + gain, "inputs": INDEPENDENT})


def by_sums_cut_off(evidence: Evidence) -> float:
    """By how much a user's function in float32 may shrink a tensor whose sums a tensor core adds."""
    own = evidence.effective_in(evidence.dtype) == inside.FORMAT and inside.is_foreign(evidence)
    return inside.cut_off(evidence.key, evidence.tensor) if own else 0.0


def are_sums_cut_off(evidence: Evidence, rows: Rows) -> bool:
    """Whether a tensor is as much smaller than the reference as such sums make it."""
    gain, error = gain_of(rows)
    return STANDARD_ERRORS * error < -gain <= by_sums_cut_off(evidence)


def is_scaled(row: Mapping[str, Any]) -> bool:
    """Whether a single row of the table shows a factor."""
    certain = abs(row["error_gain"]) - STANDARD_ERRORS * row["error_gain_se"]
    rows, _ = extent(row, row["tensor"], np.array([row["rank"]]))
    arithmetic = fields.arithmetic_of(row["options"])
    effective = computed_in(effective_dtype(row["tensor"], row["dtype"]), row["dtype"], arithmetic)
    effective = CUT if arithmetic == CUT else effective
    quantised = unit_roundoff(str(row["kernel"]), str(row["kernel_options"]))
    own = effective == "float32" != arithmetic and fields.is_foreign(row["options"])
    if own and row["error_gain"] < 0 and certain <= inside.cut_off(row, row["tensor"]):
        return False
    return row["inputs"] == INDEPENDENT and _is_certain(row["tensor"], effective, rows[0], certain, quantised)


def _is_certain(tensor: str, effective: str, rows: float, certain: float, quantised: float) -> bool:
    """The one bound. certain: the gain beyond its standard errors; quantised: unit roundoff of what the kernel
    quantises. Scores with errors of variance e^2 give weights exp(e^2 / 2) too large, all of one sign. dbias may have
    few numbers."""
    return tensor not in ("lse", "dbias") and rows >= FEWEST_ROWS and bool(certain > max(shift(effective), quantised))


def gain_of(rows: Rows) -> tuple[float, float]:
    """Mean over the seeds and its standard error; NaN where it was not recorded."""
    errors = rows["error_gain_se"]
    seeds = max(1, int(np.count_nonzero(~np.isnan(errors))))
    return mean(rows["error_gain"]), math.sqrt(mean(errors**2) / seeds)


def shift(dtype: str) -> float:
    """What rounding a tensor to nearest in `dtype` may shift its gain by."""
    form = form_of(dtype)
    units = UNITS.get(dtype, SHORT if form.bytes == 2 else WIDE)
    return max(units * form.unit_roundoff, REFERENCE_ERROR)


def biased(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    if evidence.tensor == "lse" or evidence.effective == "float64" or evidence.arithmetic == CUT:
        return None
    rows = evidence.all_ranks.joined(evidence.probes.where(evidence.probes["rank"] == ALL_RANKS))
    for (name,), same in rows.by("inputs").items():
        for column, (base, below, above) in SIDES.items():
            t, share = significance(same, column, base)
            least = max(SHARE, DEVIATIONS / math.sqrt(evidence.counts(same)[0].sum()))
            if share > least and t > stdtrit(len(same) - 1, (1 + LEVEL) / 2) and not _by_a_gain(evidence, same, column):
                side = mean(same[column])
                numbers = {"bias_t": math.copysign(t, side), "bias_share": share, "inputs": name}
                numbers |= {"side": above if side > 0 else below} | inside.weights(evidence, name)
                if side < 0 and typical(same["error_rel"]) <= by_sums_cut_off(evidence):
                    numbers |= {inside.MARK: inside.SUMS}
                return Finding(BIASED, "biased", numbers)
    return None


def _by_a_gain(evidence: Evidence, rows: Rows, column: str) -> bool:
    """Whether a bias away from or towards zero is one that a scale makes which float32 rounds."""
    gain, _ = gain_of(rows)
    own = evidence.effective == inside.FORMAT and inside.is_foreign(evidence) and evidence.tensor in ("dq", "dk")
    if column != "error_outward" or not own or not abs(gain) <= OF_SCALES * evidence.unit_roundoff:
        return False
    return bool(0 < mean(rows[column]) * np.sign(gain) <= abs(gain) * mean(rows["reference_rms"]))


def significance(rows: Rows, column: str, base: str) -> tuple[float, float]:
    """(t over the seeds, mean as a share of the root mean square error) of the signed error beyond single device's."""
    biases = rows[column]
    beyond = np.sign(mean(biases)) * biases - np.abs(np.nan_to_num(rows[base], nan=0.0, posinf=np.inf, neginf=-np.inf))
    if len(beyond) < FEWEST_SEEDS or np.isnan(beyond).any():
        return 0.0, 0.0
    size, error = max(0.0, mean(beyond)), mean(rows["error_rms"])
    spread = float(beyond.std(ddof=1)) / math.sqrt(len(beyond))
    return (size / spread if spread > 0 else math.inf if size > 0 else 0.0), (size / error if error > 0 else 0.0)
