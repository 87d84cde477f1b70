"""The same schedule in finer dtypes, where rounding falls with the unit roundoff and a fault stays; and single elements
that are beyond any rounding in the dtype.

`ladder`: the axis is each tensor's effective precision (lse is float32 in a bfloat16 case). Thresholds:

- beyond the band: an error above `rounding_band` of its dtype, and above 30 times single device's (inputs that cancel
  cost every kernel digits; but a single-device kernel without digits on any inputs is broken and excuses nothing), is
  no rounding in that dtype, unless it falls to a finer one as rounding does: by at least the root of u, and to no less
  than a quarter of as many u (kernels of two dtypes do not round at the same places). Then it is large rounding;
- slope, in 16-bit dtypes, whose band is wide enough to hide a coarser format: log2 of the fall per bit from the next
  coarser dtype. 1 is rounding, 0 a constant: below 1/2, with the error at least twice single device's, something
  constant outweighs rounding. Partials that cancel (attention sinks) round more than single device does, and not by the
  same luck in two dtypes: twice what their condition number explains, then;
- a function of a user's may round scores to the case's 16 bits, as transformers' eager attention does. Rounding once
  moves a score by 0.41 u of itself, root mean square, and the weights, with all that is summed with them, by that times
  the softmax's condition number. Four times that is allowed, as `excess` has it, but where scores are small (Gaussian
  inputs under the usual scale);
- a kernel that quantises rounds alike in every dtype: its error is beyond the band where it is above 4 times single
  device's, which in turn is held to 4 unit roundoffs of what is quantised on Gaussian inputs. On others elements may be
  equal and round alike, and a block's scale decides how: at least one rounding of what is quantised counts there;
- a fault seen in a finer dtype is in a coarser one too if the error there is at least half as large, and no rounding to
  a format that shows on Gaussian inputs.

What does not fall is `precision_floor` where it bears the mark of a known format (see `accuracy.verdict.floor`), else
`logic`. delta = sum_d dout out inherits the error of out, and its mark. Where dims err independently, it is as far off
as out, relative to itself; 4 times as far is allowed, as an error may be from one rounding to a format.

`beyond`: the column of that name counts the elements of a tensor that are farther from the reference than a certain
error bound for rounding everything that may be stored to the dtype, or to a coarser one that the case asks for
(`accuracy/bound/README.md`). One element is enough. Asked after the ladder, which sees a tensor that was rounded to
another format by its norm; what is left are few elements, whose error the norm hides. The bound is that of the usual
order of products. A user's function may give every element a part of all others' rounding, as the gradient of a mean
that is taken off all keys does; so its elements are held to `rounding_band` of the tensor, too. What a smaller fault is
in float32, it is in float64, where the band is 1e-13.
"""

import math

import numpy as np

from accuracy.core.dtype import EXACT_IN, FORMATS, Format, form_of, rounding_band
from accuracy.results.table import ALL_RANKS
from accuracy.verdict import inside
from accuracy.verdict.evidence import INDEPENDENT, TIMES_QUANTISED, Evidence
from accuracy.verdict.floor import LEVEL, STRUCK, WITHIN, WITHIN_GRADIENT, Rung, coarser_format
from accuracy.verdict.label import LOGIC, PRECISION_FLOOR, Finding, Numbers
from accuracy.verdict.rows import Rows, typical
from accuracy.verdict.rule.excess import FOREIGN_SHORT, GRADIENTS, cancellation, condition_of_scores

TIMES_SINGLE_DEVICE = 30.0
LEAST_SLOPE = 0.5
TWICE = 2.0
QUARTER = 4.0
PRESENT = 0.5


def ladder(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`."""
    own, dtype = evidence.rungs.get(evidence.dtype, {}), evidence.dtype
    twice = TIMES_QUANTISED if evidence.quantised else TWICE
    for name, rows, ranks in evidence.by_inputs:
        rung, slope = own[name], _slope_to(evidence, name)
        flat = evidence.is_short and not evidence.in_parts and slope is not None and slope < LEAST_SLOPE
        if not (flat and rung.level > twice * _rounding(evidence, name, rows)) and not _beyond(evidence, dtype, name):
            if finding := _fault_of_finer(evidence, name, rung):
                return finding
            continue
        if finding := inside.scores(evidence, name):
            return finding
        numbers: dict[str, float | str] = {"error_rel": rung.level, "inputs": name}
        numbers |= {} if slope is None else {"slope": slope}
        if found := _coarser(evidence, dtype, name, evidence.effective, ranks["error_rel"]):
            numbers |= {"floor": found[0], "mark": found[1]}
            return Finding(PRECISION_FLOOR, "floor", numbers)
        if rung.struck >= STRUCK:
            return Finding(LOGIC, "large", numbers)
        return Finding(LOGIC, "large_in_few", numbers | {"struck": rung.struck})
    return inside.fact(evidence)


def beyond(evidence: Evidence) -> Finding | None:
    """See `accuracy.verdict.verdict`. On inputs that are exact in the 8 bits of q or k, the dtype alone rounds, or 16
    bits, which kernels with such scores have for weights and v whatever the dtype is."""
    band = evidence.band(evidence.dtype) if inside.is_foreign(evidence) else 0.0
    exact = evidence.probes.where(evidence.probes["inputs"] == EXACT_IN.get(evidence.arithmetic))
    if evidence.in_parts and evidence.dtype == inside.FINEST:  # the bound is that of float32
        band = math.inf
    least = max(rounding_band(evidence.tensor, each) for each in (evidence.dtype, "bfloat16"))
    rows = _farther(evidence.all_ranks, band).joined(_farther(exact, least))
    if not len(rows):
        return None
    numbers: Numbers = {"beyond": float(rows["beyond"].max()), "inputs": ", ".join(sorted(set(rows["inputs"])))}
    return Finding(LOGIC, "beyond", numbers)


def _farther(rows: Rows, band: float) -> Rows:
    """Those of all ranks together with values beyond the certain bound, and farther than the band."""
    together = rows["rank"] == ALL_RANKS
    return rows.where(together & (rows["beyond"] > 0) & (rows["error_max"] > band * rows["reference_rms"]))


def _rounding(evidence: Evidence, name: str, rows: Rows) -> float:
    """The relative error that rounding makes: single device's, or that of partials which cancel; infinite where nothing
    tells how far they do."""
    cancelled = cancellation(evidence, name, rows)
    partials = typical(np.fmax(rows["floor_rel"], LEVEL * evidence.unit_roundoff) * cancelled)
    return math.inf if np.isnan(cancelled).any() else max(evidence.rungs[evidence.dtype][name].single_device, partials)


def slope_of(evidence: Evidence) -> float:
    """Fall of the error per bit from the coarsest to the finest dtype measured; NaN where there is but one."""
    levels = _levels(evidence, next(iter(evidence.rungs.get(evidence.dtype, {})), ""))
    low, high = min(levels, default=0), max(levels, default=0)
    return _fall(levels[low], levels[high], high - low) if low < high else math.nan


def _levels(evidence: Evidence, name: str) -> dict[int, float]:
    """Error by bits of the effective precision; where two dtypes have the same, the case's own."""
    dtypes = sorted(evidence.rungs, key=lambda dtype: dtype == evidence.dtype)
    return {
        form_of(evidence.effective_in(dtype)).precision: evidence.rungs[dtype][name].level
        for dtype in dtypes
        if name in evidence.rungs[dtype]
    }


def _slope_to(evidence: Evidence, name: str) -> float | None:
    """The fall from the next coarser dtype to this one."""
    levels, bits = _levels(evidence, name), form_of(evidence.effective_in(evidence.dtype)).precision
    below = max((each for each in levels if each < bits), default=None)
    return None if below is None else _fall(levels[below], levels[bits], bits - below)


def _fault_of_finer(evidence: Evidence, name: str, rung: Rung) -> Finding | None:
    """A fault that a finer dtype shows, hidden under this dtype's rounding."""
    for dtype, others in evidence.rungs.items():
        fine = others.get(name)
        finer = form_of(evidence.effective_in(dtype)).precision > form_of(evidence.effective).precision
        if fine is None or not finer or not _beyond(evidence, dtype, name) or rung.level < PRESENT * fine.level:
            continue
        if not _is_of_format(evidence, dtype, name):
            found: Numbers = {"error_rel": rung.level, "finer": fine.level, "finer_dtype": dtype, "inputs": name}
            return Finding(LOGIC, "also_finer", found)
    return None


def _coarser(
    evidence: Evidence, dtype: str, name: str, effective: str, ranks: np.ndarray | None = None
) -> tuple[str, str] | None:
    """The coarser format whose mark an error bears, as `coarser_format` has it. ranks: those of each rank, if known."""
    rung = evidence.rungs[dtype][name]
    most = WITHIN_GRADIENT if evidence.tensor in GRADIENTS and inside.is_foreign(evidence) else WITHIN
    each = np.empty(0) if ranks is None else ranks
    found = coarser_format(rung.level, rung.bits, each, effective, rung.struck, most)
    out = evidence.out_rungs.get(dtype, {}).get(name)
    if found or evidence.tensor != "delta" or out is None or rung.level > WITHIN * out.level:
        return found
    of_out = coarser_format(out.level, out.bits, np.empty(0), effective, out.struck)
    return of_out and (of_out[0], f"as out, of which it is made: {of_out[1]}")


def _is_of_format(evidence: Evidence, dtype: str, name: str) -> bool:
    """Whether a dtype's error bears the mark of a coarser format on these inputs, or on Gaussian ones and is here no
    larger than that format's rounding, to first order single device's error in as many larger units."""
    effective = evidence.effective_in(dtype)
    rungs = evidence.rungs[dtype]
    here, gaussian = rungs[name], rungs.get(INDEPENDENT)
    if _coarser(evidence, dtype, name, effective) is not None:
        return True
    found = gaussian and _coarser(evidence, dtype, INDEPENDENT, effective)
    if not found or not evidence.single_device_has_digits(dtype):
        return False
    units = FORMATS[found[0]].unit_roundoff / form_of(effective).unit_roundoff
    return bool(here.level <= units * here.single_device)


def _beyond(evidence: Evidence, dtype: str, name: str) -> bool:
    """Whether the error in a dtype, on some inputs, is none that rounding in it makes."""
    rung, form = evidence.rungs[dtype][name], form_of(evidence.effective_in(dtype))
    if dtype == inside.FINEST and form.name == inside.FORMAT:
        return not inside.explains(evidence, dtype, name)
    single_device = rung.single_device * evidence.units(dtype)
    if evidence.wired or (evidence.quantised and name != INDEPENDENT):
        single_device = max(single_device, LEVEL * evidence.quantised)
    times = TIMES_QUANTISED if evidence.quantised else TIMES_SINGLE_DEVICE
    excused = times * single_device if evidence.single_device_has_digits(dtype) else 0.0
    if rung.level <= max(evidence.band(dtype), excused, _of_scores(evidence, form, name)):
        return False
    for bits, level in _levels(evidence, name).items():
        finer = bits - form.precision
        if finer > 0 and _fall(rung.level, level, finer) >= LEAST_SLOPE and level * 2**finer >= rung.level / QUARTER:
            return False
    return True


def _of_scores(evidence: Evidence, form: Format, name: str) -> float:
    """What a user's function may make of scores that it rounds to 16 bits; 0 where scores are small. Where no condition
    number was recorded, it is no larger than scores, nor they than lse; where there is none either, their standard
    deviation counts, as inputs say it."""
    if form.bytes != 2 or evidence.has_small_scores(name) or not inside.is_foreign(evidence):
        return 0.0
    rows = evidence.all_ranks.where(evidence.all_ranks["inputs"] == name)
    known = (condition_of_scores(evidence, rows), typical(rows["lse_rms"]))
    spread = evidence.spread_of_scores(str(rows["inputs_options"][0])) if len(rows) else 0.0
    condition = next((each for each in known if 0 < each < math.inf), spread)
    return float(FOREIGN_SHORT * LEVEL * form.unit_roundoff * condition)


def _fall(coarse: float, fine: float, bits: int) -> float:
    if not (math.isfinite(coarse) and math.isfinite(fine)) or coarse <= 0 or fine <= 0:
        return 1.0 if fine == 0 else 0.0
    return math.log2(coarse / fine) / bits
