"""Rule 3: the same schedule in finer dtypes. Rounding falls with the unit roundoff, a fault stays where it is.

The axis is each tensor's effective precision (lse is float32 in a bfloat16 case). Thresholds:

- beyond the band: an error above `rounding_band` of its dtype, and above 30 times single device's (inputs that cancel
  cost every kernel digits; but a single-device kernel without digits on any inputs is broken and excuses nothing), is
  no rounding in that dtype, unless it falls to a finer one as rounding does: by at least the root of u, and to no less
  than a quarter of as many u (kernels of two dtypes do not round at the same places). Then it is large rounding;
- slope, in 16-bit dtypes, whose band is wide enough to hide a coarser format: log2 of the fall per bit from the next
  coarser dtype. 1 is rounding, 0 a constant: below 1/2, with the error at least twice single device's, something
  constant outweighs rounding. Partials that cancel (attention sinks) round more than single device does, and not by the
  same luck in two dtypes: twice what their condition number explains, then;
- a kernel that quantises rounds alike in every dtype: its error is beyond the band where it is above 4 times single
  device's, which in turn is held to 4 unit roundoffs of what is quantised on Gaussian inputs. On others elements may be
  equal and round alike, and a block's scale decides how: at least one rounding of what is quantised counts there;
- a fault seen in a finer dtype is in a coarser one too if the error there is at least half as large, and no rounding to
  a format that shows on Gaussian inputs.

What does not fall is `precision_floor` where it bears the mark of a known format (see `accuracy.verdict.floor`), else
`logic`.
"""

import math

import numpy as np

from accuracy.core.dtype import FORMATS, rounding_band
from accuracy.verdict import inside
from accuracy.verdict.evidence import INDEPENDENT, TIMES_QUANTISED, Evidence, Rung
from accuracy.verdict.floor import LEVEL, STRUCK, coarser_format
from accuracy.verdict.label import LOGIC, PRECISION_FLOOR, Finding
from accuracy.verdict.rows import Rows, typical
from accuracy.verdict.rule.excess import cancellation

TIMES_SINGLE_DEVICE = 30.0
LEAST_SLOPE = 0.5
TWICE = 2.0
QUARTER = 4.0
PRESENT = 0.5


def judge(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    own = evidence.rungs.get(evidence.dtype, {})
    twice = TIMES_QUANTISED if evidence.quantised else TWICE
    for name, rows, ranks in evidence.by_inputs:
        rung = own[name]
        slope = _slope_to(evidence, name)
        short = FORMATS[evidence.effective].bytes == 2
        flat = short and slope is not None and slope < LEAST_SLOPE and rung.level > twice * _usual(evidence, name, rows)
        if not flat and not _beyond(evidence, evidence.dtype, name):
            if finding := _fault_of_finer(evidence, name, rung):
                return finding
            continue
        numbers: dict[str, float | str] = {"error_rel": rung.level, "inputs": name}
        if slope is not None:
            numbers["slope"] = slope
        if finding := inside.scores(evidence, rung):
            return finding
        if found := coarser_format(rung.level, rung.bits, ranks["error_rel"], evidence.effective, rung.struck):
            form, mark = found
            text = f"only as good as {form} in {evidence.dtype}: {mark}"
            return Finding(PRECISION_FLOOR, text, numbers | {"floor": form})
        where = "" if rung.struck >= STRUCK else f", in {rung.struck:.2g} of its elements"
        text = f"the relative error is {rung.level:.2g} in {evidence.dtype} ({name} inputs){where}"
        return Finding(LOGIC, text, numbers)
    return inside.fact(evidence)


def _usual(evidence: Evidence, name: str, rows: Rows) -> float:
    """The relative error that rounding makes: single device's, or that of partials which cancel; infinite where nothing
    tells how far they do."""
    cancelled = cancellation(evidence, name, rows)
    partials = typical(np.fmax(rows["floor_rel"], LEVEL * evidence.unit_roundoff) * cancelled)
    return math.inf if np.isnan(cancelled).any() else max(evidence.rungs[evidence.dtype][name].single_device, partials)


def slope_of(evidence: Evidence) -> float:
    """Fall of the error per bit from the coarsest to the finest dtype measured; NaN where there is but one."""
    levels = _levels(evidence, next(iter(evidence.rungs.get(evidence.dtype, {})), ""))
    if len(levels) < 2:
        return math.nan
    low, high = min(levels), max(levels)
    return _fall(levels[low], levels[high], high - low)


def _levels(evidence: Evidence, name: str) -> dict[int, float]:
    """Error by bits of the effective precision; where two dtypes have the same, the case's own."""
    dtypes = sorted(evidence.rungs, key=lambda dtype: dtype == evidence.dtype)
    return {
        FORMATS[evidence.effective_in(dtype)].precision: evidence.rungs[dtype][name].level
        for dtype in dtypes
        if name in evidence.rungs[dtype]
    }


def _slope_to(evidence: Evidence, name: str) -> float | None:
    """The fall from the next coarser dtype to this one."""
    levels, mine = _levels(evidence, name), FORMATS[evidence.effective_in(evidence.dtype)].precision
    below = [bits for bits in levels if bits < mine]
    return _fall(levels[max(below)], levels[mine], mine - max(below)) if below else None


def _fault_of_finer(evidence: Evidence, name: str, rung: Rung) -> Finding | None:
    """A fault that a finer dtype shows, hidden under this dtype's rounding."""
    for dtype, others in evidence.rungs.items():
        effective = evidence.effective_in(dtype)
        fine = others.get(name)
        if fine is None or FORMATS[effective].precision <= FORMATS[evidence.effective].precision:
            continue
        if not _beyond(evidence, dtype, name) or rung.level < PRESENT * fine.level:
            continue
        if not _is_of_format(evidence, dtype, name):
            text = f"the relative error is {rung.level:.2g} and still {fine.level:.2g} in {dtype} ({name} inputs)"
            return Finding(LOGIC, text, {"error_rel": rung.level, "finer": fine.level, "inputs": name})
    return None


def _is_of_format(evidence: Evidence, dtype: str, name: str) -> bool:
    """Whether a dtype's error bears the mark of a coarser format on these inputs, or on Gaussian ones and is here no
    larger than that format's rounding, to first order single device's error in as many larger units."""
    effective = evidence.effective_in(dtype)
    rungs = evidence.rungs[dtype]
    here, usual = rungs[name], rungs.get(INDEPENDENT)
    if coarser_format(here.level, here.bits, np.empty(0), effective, here.struck) is not None:
        return True
    found = usual and coarser_format(usual.level, usual.bits, np.empty(0), effective, usual.struck)
    if not found or not evidence.single_device_has_digits(dtype):
        return False
    units = FORMATS[found[0]].unit_roundoff / FORMATS[effective].unit_roundoff
    return bool(here.level <= units * here.single_device)


def _beyond(evidence: Evidence, dtype: str, name: str) -> bool:
    """Whether the error in a dtype, on some inputs, is none that rounding in it makes."""
    rung, form = evidence.rungs[dtype][name], FORMATS[evidence.effective_in(dtype)]
    if dtype == inside.FINEST and form.name == inside.FORMAT:
        return not inside.explains(evidence, dtype, name)
    single_device = rung.single_device
    if evidence.wired or (evidence.quantised and name != INDEPENDENT):
        single_device = max(single_device, LEVEL * evidence.quantised)
    times = TIMES_QUANTISED if evidence.quantised else TIMES_SINGLE_DEVICE
    excused = times * single_device if evidence.single_device_has_digits(dtype) else 0.0
    if rung.level <= max(rounding_band(evidence.tensor, dtype), excused):
        return False
    for bits, level in _levels(evidence, name).items():
        finer = bits - form.precision
        if finer > 0 and _fall(rung.level, level, finer) >= LEAST_SLOPE and level * 2**finer >= rung.level / QUARTER:
            return False
    return True


def _fall(coarse: float, fine: float, bits: int) -> float:
    if not (math.isfinite(coarse) and math.isfinite(fine)) or coarse <= 0 or fine <= 0:
        return 1.0 if fine == 0 else 0.0
    return math.log2(coarse / fine) / bits
