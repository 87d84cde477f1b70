"""Was anything rounded to a coarser format? The two marks that a known format leaves in a finer case."""

import math

import numpy as np
import pandas as pd

from accuracy.core.dtype import FORMATS, form_of

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
