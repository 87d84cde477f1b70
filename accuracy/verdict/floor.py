"""A schedule's error in one dtype on one distribution, and what it shows: was anything rounded to a coarser format?

A tensor core's arithmetic is a fact, no fault: TF32 has 5,000 times the error of float32 products. It keeps 11 bits of
each value, cut off or to the nearest, whatever its exponent, where float16 loses values that are small or large;
several products of 16-bit parts keep about 16 or 20 bits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core.dtype import ARITHMETIC, EIGHT_BITS, EXACT_IN, FORMATS, form_of, rounding_band
from accuracy.core.quantisation import unit_roundoff
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.rows import KERNEL

LEVEL = 0.41
"""Relative error (Frobenius) of rounding once to nearest, in unit roundoffs: the root mean square of a uniform error,
1 / sqrt(3), over a mantissa spread like 1/x; measured floors are 0.40 to 0.42 u."""
WITHIN = 4.0  # from a quarter of that level (partials average) to four times (a few of them add)
WITHIN_GRADIENT = WITHIN * math.sqrt(3)
"""Of a user's gradients, whose kernel in 16 bits rounds dS, the out of delta, and the result: three roundings add in
squares, 0.71 u. `accuracy.verdict.rule.excess` allows a user's function four times single device's error in a case of
16 bits, and so much it has in a case of float32 too where it computes in 16 bits: 2.8 u."""
WITHIN_EXACT = 16.0  # where every value is exact in the format, more roundings may have added up
SPREAD = 4.0  # rounding strikes all ranks alike; bugs localise
STRUCK = 0.25  # of the elements at least: a cast strikes all of a tensor, alike in units of each


def share_struck(rows: pd.DataFrame) -> pd.Series:
    """Which share of a tensor's elements has the error, at most 1: an error that strikes a share s of them alike has a
    mean that is sqrt(s) times as large beside its root mean square as the floor's, which strikes all. 1 without a
    floor."""
    ratio = rows["error_mean"] / rows["error_rms"] * rows["floor_rel"] * rows["reference_rms"] / rows["floor_mean"]
    return ratio.replace([np.inf, -np.inf], np.nan).fillna(1.0).clip(upper=1.0) ** 2


def coarser_format(
    level: float, bits: float, ranks: np.ndarray, effective: str, struck: float = 1.0, most: float = WITHIN
) -> tuple[str, str] | None:
    """(format, its mark in words) of the coarser format to which a tensor was rounded, or None.

    level: relative error over all ranks; bits: the most that a value needs (NaN: not recorded); ranks: relative
    errors of the ranks; effective: the precision that the tensor could have had; struck: see `share_struck`; most:
    times the error of one rounding that it may be. The marks: all values are exact in the format; or the error is as
    large as one to ten roundings to it, on all ranks alike, and not in few elements.
    """
    for form in sorted(FORMATS.values(), key=lambda form: form.precision):
        if form.precision >= form_of(effective).precision:
            return None
        expected = LEVEL * form.unit_roundoff
        if not math.isnan(bits) and 0 < bits <= form.precision and level <= WITHIN_EXACT * expected:
            return form.name, f"every value is exact in {form.name}"
        spread = struck >= STRUCK and (not len(ranks) or ranks.max() <= SPREAD * ranks.min())
        if spread and expected / WITHIN <= level <= expected * most:
            return form.name, f"the error is {level / form.unit_roundoff:.2g} unit roundoffs of {form.name}"
    return None


WIDE = 30.0
"""Octaves of v up and down in inputs `copied`: float16 has 15 and 24."""
TF32, SPLIT = ("tf32_cut", "tf32"), ("split_16", "split_20")
MOST, MOST_SPLIT, MOST_WRONG = 2.0, 4.0, 2**-9
"""By which the error may differ from that of one rounding: a scale moves values within a format, parts of a value are
below their bounds. What is farther off on Gaussian inputs has a fault, as a few wrong rows are."""
TIMES = 3.0  # out's error on Gaussian inputs over that on inputs whose q and k are exact in the format
SCORES = {"int8": (2**-9, 0.05), "scores_e4m3": (0.01, 0.034), "scores_e5m2": (0.034, 0.1)}
"""Out's error on Gaussian inputs where q or k is in 8 bits. INT8: steps of a 127th of the largest of 128 numbers,
2.7, are 0.006 of an entry, root mean square, and as much of the scores. FP8: LEVEL times 2^-4 or 2^-3, 0.026 or 0.051,
of q or of k, sqrt(2) times that of both, and less where a row sees few keys."""
LARGEST, MOST_GAIN = 6.0, 0.25
"""v's largest value over their root mean square; what rounding shifts all by, over its error: a factor is all of it."""
ONE_WAY = 0.5
"""Mean of the error over its root mean square: 0.87 where digits are cut off, 0 where they are rounded."""


def arithmetic_of(rows: pd.DataFrame) -> str | None:
    """Return what a function computes its products in, by its rows of out; None: its dtype."""
    rows = rows[(rows["tensor"] == "out") & (rows["rank"] == ALL_RANKS) & ~(rows["nonfinite"] > 0)]
    if name := _scores_in_8_bits(rows):
        return name
    gaussian = rows.loc[(rows["inputs"] == "gaussian") & (rows["dtype"] == "float32"), "error_rel"]
    known = [name for name in ARITHMETIC if name not in SPLIT or not gaussian.max() > MOST_WRONG]
    rows = rows[(rows["inputs"] == "copied") & (rows["error_rel"] > 0)]
    is_wide = rows["inputs_options"] == f"octaves={WIDE}"
    lost = rows.loc[is_wide, "error_rel"].max()
    rows = rows[~is_wide]
    alike = (rows["error_rel"] <= MOST * lost) & (lost <= MOST * rows["error_rel"])
    rows = rows[(rows["dtype"] != "float32") | alike]  # else a format of few exponents, as float16
    return next((name for row in rows.to_dict("records") for name in known if _is_of(row, name)), None)


def _scores_in_8_bits(rows: pd.DataFrame) -> str | None:
    """In which 8 bits q or k is, if out is wrong by as much in every dtype, and right where they are exact in them."""
    levels = rows.groupby(["dtype", "inputs"])["error_rel"].max().unstack()
    for name, band in SCORES.items() if "gaussian" in levels else ():
        exact = EXACT_IN[name]
        both = levels.reindex(columns=["gaussian", exact]).dropna()
        bands = [max(2**-9, rounding_band("out", str(dtype))) for dtype in both.index]  # v may be in 16 bits
        right = (both[exact] <= bands) & (both[exact] * TIMES <= both["gaussian"])
        if len(both) and right.all() and both["gaussian"].between(*band).all():
            return name
    return None


def _is_of(row: Mapping[Any, Any], name: str) -> bool:
    """Whether v was rounded to a format: by the size of out's error, the bits of its values, and their sides."""
    times = row["error_rel"] / LEVEL / ARITHMETIC[name].unit_roundoff
    if name in SCORES or (name in EIGHT_BITS) == (row["dtype"] == "float32"):
        return False
    most = 2 * ARITHMETIC[name].unit_roundoff * LARGEST * row["reference_rms"]  # cut off: twice as far
    if row["error_max"] > most or (name != "tf32_cut" and abs(row["error_gain"]) > row["error_rel"] * MOST_GAIN):
        return False
    if name in SPLIT:
        return FORMATS["float16"].precision < row["significand_bits"] and 1 / MOST_SPLIT <= times < MOST_SPLIT
    if name in TF32:
        cut = row["error_outward"] < -ONE_WAY * row["error_rms"]
        right = FORMATS["bfloat16"].precision < row["significand_bits"] <= ARITHMETIC["tf32"].precision
        return bool(right and cut == (name == "tf32_cut"))
    return bool(1 / MOST <= times <= MOST)


@dataclass(frozen=True)
class Rung:
    """A schedule's error over all ranks in one dtype on one distribution: geometric means over the ladder's seeds.

    level: relative error; single_device: that of the kernel run once, or of the floor where that is larger; bits: the
    most that a value needs; outward: the share of the error that points away from zero, or towards it (below 0);
    struck: the share of elements that have the error, at most.
    """

    level: float
    single_device: float
    bits: float
    outward: float = 0.0
    struck: float = 1.0


def rungs_of(rows: pd.DataFrame, family: list[str]) -> dict[tuple[Any, ...], dict[tuple[str, ...], Rung]]:
    """For each schedule and tensor: rungs by (dtype, inputs, kernel, its options), over the seeds that all dtypes have.

    A mean over other seeds than the next dtype's is no step of a ladder: one draw may be far worse conditioned. A dtype
    that shares no seed with the others has those that it has.
    """
    drawn = [*family, "inputs", "seed"]
    dtypes = rows.groupby(drawn, sort=False)["dtype"].transform("nunique")
    shared = dtypes == dtypes.groupby([rows[name] for name in drawn[:-1]], sort=False).transform("max")
    lonely = ~shared.groupby([rows[name] for name in (*drawn[:-1], "dtype")], sort=False).transform("any")
    rows = rows[shared | lonely]
    logs = rows.assign(
        _level=np.log(rows["error_rel"].clip(lower=5e-324)),
        _single_device=np.log(rows[["single_device_rel", "floor_rel"]].max(axis=1).clip(lower=5e-324)),
        _bits=rows["significand_bits"], _outward=rows["error_outward"] / rows["error_rms"], _struck=share_struck(rows),
    )  # fmt: skip
    how = {"_level": "mean", "_single_device": "mean", "_bits": "max", "_outward": "mean", "_struck": "mean"}
    means = logs.groupby([*family, "dtype", "inputs", *KERNEL], sort=False).agg(how)
    found: dict[tuple[Any, ...], dict[tuple[str, ...], Rung]] = {}
    for key, level, single_device, *others in means.itertuples():
        rung = Rung(float(np.exp(level)), float(np.exp(single_device)), *map(float, others))
        found.setdefault(key[: len(family)], {})[key[len(family) :]] = rung
    return found


def same_kernel(rungs: dict[tuple[str, ...], Rung], key: dict[str, Any]) -> dict[str, dict[str, Rung]]:
    """The rungs of the subject's kernel by dtype and inputs. Where it lacks a dtype, another kernel's stand in, but for
    one that quantises, whose errors are the same in every dtype."""
    subject = tuple(key[name] for name in KERNEL)
    chosen: dict[str, dict[str, Rung]] = {}
    for own in (False, True):  # the subject's own kernel comes last and stays
        for (dtype, inputs, *kernel), rung in rungs.items():
            if (tuple(kernel) == subject) == own and (own or not unit_roundoff(*map(str, kernel))):
                chosen.setdefault(dtype, {})[inputs] = rung
    return chosen
