"""A schedule's error in one dtype on one distribution, and the marks that rounding to a coarser format leaves in it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core.dtype import FORMATS, form_of
from accuracy.core.quantisation import unit_roundoff
from accuracy.verdict.rows import KERNEL

LEVEL = 0.41
"""Relative error (Frobenius) of rounding once to nearest, in unit roundoffs: the root mean square of a uniform error,
1 / sqrt(3), over a mantissa spread like 1/x; measured floors are 0.40 to 0.42 u."""
WITHIN = 4.0  # from a quarter of that level (partials average) to four times (a few of them add)
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
    level: float, bits: float, ranks: np.ndarray, effective: str, struck: float = 1.0
) -> tuple[str, str] | None:
    """(format, its mark in words) of the coarser format to which a tensor was rounded, or None.

    level: relative error over all ranks; bits: the most that a value needs (NaN: not recorded); ranks: relative
    errors of the ranks; effective: the precision that the tensor could have had; struck: see `share_struck`. The marks:
    all values are exact in the format; or the error is as large as one to ten roundings to it, on all ranks alike, and
    not in few elements.
    """
    for form in sorted(FORMATS.values(), key=lambda form: form.precision):
        if form.precision >= form_of(effective).precision:
            return None
        expected = LEVEL * form.unit_roundoff
        if not math.isnan(bits) and 0 < bits <= form.precision and level <= WITHIN_EXACT * expected:
            return form.name, f"every value is exact in {form.name}"
        spread = struck >= STRUCK and (not len(ranks) or ranks.max() <= SPREAD * ranks.min())
        if spread and expected / WITHIN <= level <= expected * WITHIN:
            return form.name, f"the error is {level / form.unit_roundoff:.2g} unit roundoffs of {form.name}"
    return None


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
