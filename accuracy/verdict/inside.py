"""Does a function, a user's or a package's, compute in float32 inside? A measured fact, and no fault: it promises no
finer.

In a float64 case such a function returns float64 tensors with a float32 error. Two things are known of it there: how
far out is from the reference, and how far every tensor is where the function was called in float32. Its inputs are
rounded to float32 once more (four tensors, and what is stored between forward and backward), so a tensor may be a few
times as far as in the float32 case, or as the single-device kernel there: `TIMES`, one for each of eight roundings. A
float32 case that is itself further than that from the reference is no measure of float32: it has a 16-bit cast.
An error that points one way, as a constant factor's does, is none of rounding. Of n errors that move by themselves
the mean is 1 / sqrt(n) of their root mean square: five of these may be chance, so 32 values of delta say nothing.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import DTYPES, FORMATS
from accuracy.verdict.label import BUGS, PRECISION_FLOOR, ROUNDING, Finding, Numbers

if TYPE_CHECKING:
    from accuracy.verdict.evidence import Evidence
    from accuracy.verdict.floor import Rung

FORMAT = "float32"
FINEST = "float64"
TIMES = 8.0
LEAST = 1 / 16  # of a unit roundoff: less is no rounding to float32 of more than a few elements
ONE_WAY = 0.3  # of the error's root mean square; a constant factor's share is 0.8 for Gaussian references
DEVIATIONS = 5.0
CLEARLY_LESS = 3.0
THREE_PRODUCTS = 16.0
"""Unit roundoffs that dq and dk lose to three products of parts in TF32 that are cut off: four operands 2.8 each in the
mean, and twice the product of two small parts, 2."""
TERMS_A_STEP = 8.0  # that a tensor core adds to a sum at once, which then loses up to u of itself in the mean
MARK = "inside"  # in the numbers of a finding that is a fact and no fault: float32 inside, or one of those below
LSE, WEIGHTS, SCORES = "lse", "weights", "scores"  # lse stored in float32; equal values, or scores, in 16 bits
ORDER = "order"  # sums in another order from call to call
SUM_OF_KEYS = "sum"  # a softmax's sum that is kept in 16 bits
SUMS = "sums"  # float32 sums that a tensor core cuts off
LONG_SUM = "long_sum"  # a gradient, or out, whose sum over blocks is kept in 16 bits


def judges(evidence: "Evidence", dtype: str) -> bool:
    """Whether a tensor of a float64 case is held to float32 only."""
    if dtype != FINEST or not is_function(evidence):
        return False
    if evidence.tensor == "lse" and _stored_in_float32(evidence, dtype):
        return True
    out, coarse = evidence.out_rungs.get(dtype, {}), evidence.out_rungs.get(FORMAT, {})
    out = {name: rung for name, rung in out.items() if name == "gaussian"} or out  # others may show a fault
    least = LEAST * FORMATS[FORMAT].unit_roundoff
    return bool(out) and all(x.level >= least and _within(evidence, x, coarse.get(name)) for name, x in out.items())


def is_function(evidence: "Evidence") -> bool:
    """Whether the variant is a function, of a user or of a published package."""
    return fields.is_function(evidence.key["options"])


def is_foreign(evidence: "Evidence") -> bool:
    """Whether the variant is a user's function."""
    return fields.is_foreign(evidence.key["options"])


def is_healthy(verdicts: pd.DataFrame) -> "pd.Series[bool]":
    """Which verdicts are of rounding alone, or state such a fact."""
    facts = pd.Series([MARK in numbers for numbers in verdicts["numbers"]], index=verdicts.index, dtype=bool)
    return (verdicts["label"] == ROUNDING) | (facts & ~verdicts["label"].isin(BUGS))


def below_a_third(verdicts: pd.DataFrame, bugs: pd.DataFrame) -> "pd.Series[bool]":
    """Which verdicts have less than a third of the least error that a bug has in the same tensor and dtype. Where
    float32 inside is allowed, a bug of 1e-6 would be allowed, too."""
    keys = list(zip(verdicts["tensor"], verdicts["dtype"], strict=True))
    least = bugs.groupby(["tensor", "dtype"])["error_rel"].min().reindex(keys).to_numpy()
    return verdicts["error_rel"] < least / CLEARLY_LESS


def with_mark(verdicts: pd.DataFrame, mark: str) -> frozenset[str]:
    """The tensors of which a fact is stated."""
    return frozenset(verdicts.loc[[each.get(MARK) == mark for each in verdicts["numbers"]], "tensor"])


def marks(verdicts: pd.DataFrame) -> frozenset[str]:
    """Which of these facts the verdicts of one variant state."""
    return frozenset(str(each[MARK]) for each in verdicts["numbers"] if MARK in each)


def weights(evidence: "Evidence", inputs: str) -> dict[str, float | str]:
    """The mark of a bias that 16-bit weights give, or 16-bit dk and dv of heads; a user's function may have both."""
    return {MARK: WEIGHTS} if inputs == "tied" and is_foreign(evidence) else {}


def scores(evidence: "Evidence", inputs: str) -> Finding | None:
    """An lse with the error of scores that a user's function rounds to the case's 16 bits, as products in them are: at
    most a unit roundoff, itself not rounded so, and of both signs. On tied inputs q has so few values that the rounding
    of a scaled one has a mean. None where it is not."""
    form, rung = DTYPES[evidence.dtype], evidence.rungs[evidence.dtype][inputs]
    stored = 0 < rung.bits <= FORMATS["float16"].precision
    if evidence.tensor != "lse" or not is_foreign(evidence) or form.bytes != 2 or stored:
        return None
    both_ways = inputs == "tied" or abs(rung.outward) <= max(ONE_WAY, _by_chance(evidence))
    if not (rung.level <= form.unit_roundoff and both_ways):
        return None
    return Finding(PRECISION_FLOOR, SCORES, {MARK: SCORES, "floor": evidence.dtype, "error_rel": rung.level})


def explains(evidence: "Evidence", dtype: str, name: str) -> bool:
    """Whether float32 inside explains a tensor's error on some inputs of a float64 case."""
    return _within(evidence, evidence.rungs[dtype][name], evidence.rungs.get(FORMAT, {}).get(name))


def fact(evidence: "Evidence") -> Finding | None:
    """What is stated of a float64 case in which nothing else was found."""
    rungs = evidence.rungs.get(evidence.dtype)
    if not rungs or not judges(evidence, evidence.dtype):
        return None
    stored = evidence.tensor == "lse" and _stored_in_float32(evidence, evidence.dtype)
    numbers: Numbers = {
        MARK: LSE if stored else FORMAT, "floor": FORMAT, "off": max(rung.level for rung in rungs.values())
    }  # fmt: skip
    return Finding(PRECISION_FLOOR, "float32_lse" if stored else "float32_inside", numbers)


def _stored_in_float32(evidence: "Evidence", dtype: str) -> bool:
    return all(0 < rung.bits <= FORMATS[FORMAT].precision for rung in evidence.rungs.get(dtype, {}).values())


def cut_off(setting: Mapping[str, Any], tensor: str) -> float:
    """By how much sums in float32 shrink at most where a tensor core cuts off what does not fit, after each step, or of
    each operand beyond the second part."""
    return max(terms(setting, tensor) / TERMS_A_STEP, THREE_PRODUCTS) * FORMATS[FORMAT].unit_roundoff


def terms(setting: Mapping[str, Any], tensor: str) -> float:
    """Of how many terms a tensor's values are sums: keys, and of dk and dv queries of all heads that share a key."""
    of_queries = float(setting["seqlen_q"]) * float(setting["heads"]) / float(setting["heads_kv"])
    return of_queries if tensor in ("dk", "dv") else float(setting["seqlen"])


def _within(evidence: "Evidence", rung: "Rung", coarse: "Rung | None") -> bool:
    """Whether an error in float64 is one that float32 makes, as measured in the float32 case where there is one."""
    if not math.isfinite(rung.level):
        return False
    unit = FORMATS[FORMAT].unit_roundoff
    alike = max(coarse.single_device, unit) if coarse else 16 * unit
    measured = max(alike, min(coarse.level, TIMES * alike)) if coarse else alike
    least = 4 * unit if rung.outward > 0 else cut_off(evidence.key, evidence.tensor)
    one_way = abs(rung.outward) > max(ONE_WAY, _by_chance(evidence)) and rung.level > least
    return rung.level <= TIMES * max(min(measured, max(1000 * unit, alike)), unit) and not one_way


def _by_chance(evidence: "Evidence") -> float:
    """The mean sign that independent errors of both signs have in the fewest elements of a tensor: its standard
    deviation is 1 / sqrt(elements)."""
    return DEVIATIONS / math.sqrt(float(evidence.counts(evidence.all_ranks)[0].min()))
