"""What do the portable rules judge a cell by? Single device's error, or what rounding makes of sums that cancel.

Where condition numbers are recorded, roundings of the unit roundoff u move a result by about u (C + C_softmax), C the
larger of condition_sum and condition_rounding. So much a healthy schedule may be off, also where a single device that
joins nothing is not: partials that cancel, as on attention sinks, may be larger than their sum. Independent (Gaussian)
partials are not, so there single device's error alone is the measure.

A kernel that got worse on both sides stays within any multiple of single device. Its error is held to an absolute
bound: `rounding_band` (8 u in 16 bits, 1000 u else) times C + C_softmax where they are recorded. Where they are not,
Gaussian inputs have the band itself, which healthy variants fill to a quarter, and other inputs have no such bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core.dtype import FORMATS, effective_dtype, rounding_band
from accuracy.core.quantisation import unit_roundoff

INDEPENDENT = "gaussian"
COLUMNS = ("conditioned", "excused", "excused_max", "band")


@dataclass(frozen=True)
class Ratios:
    """conditioned: whether condition numbers were recorded. Times what is explained: all_ranks, geometric mean over the
    seeds; one_rank, largest, the largest of all. band: the error over its absolute bound, NaN where it has none."""

    conditioned: bool
    all_ranks: float
    one_rank: float
    largest: float
    band: float


def columns(rows: pd.DataFrame, times: pd.Series, max_times: pd.Series, denominator: np.ndarray) -> dict[str, Any]:
    """Of each row. times, max_times: the error over the denominator, the largest error over single device's."""
    condition = np.fmax(rows["condition_sum"], rows["condition_rounding"]) + rows["condition_softmax"].fillna(0.0)
    recorded, independent = condition.notna(), rows["inputs"] == INDEPENDENT
    pairs = list(zip(*(rows[name].to_numpy("object") for name in ("tensor", "dtype")), strict=True))
    formats = {pair: FORMATS.get(effective_dtype(*pair)) for pair in {*pairs}}
    unit = np.array([form.unit_roundoff if (form := formats[pair]) else np.nan for pair in pairs], dtype="float64")
    bands = {pair: rounding_band(*pair) if form else np.nan for pair, form in formats.items()}
    kernels = rows[["kernel", "kernel_options"]].astype(str).itertuples(index=False, name=None)
    quantised = np.array([unit_roundoff(*each) for each in kernels])  # of kernels in 8 bits, whatever the dtype
    band = np.maximum([bands[pair] for pair in pairs], 8 * quantised)
    unit = np.maximum(unit, quantised)
    excuse = np.fmax(1.0, (unit * condition / denominator).where(recorded & ~independent))
    least = condition.clip(lower=1.0).where(recorded, np.where(independent, 1.0, np.nan))
    return {
        "conditioned": recorded,
        "excused": times / excuse,
        "excused_max": max_times / excuse,
        "band": rows["error_rel"] / (band * least),
    }


def ratios(rows: Mapping[str, np.ndarray], good: np.ndarray) -> Ratios | None:
    """Of a cell. good: its finite rows of all ranks."""
    if not good.any():
        return None
    with np.errstate(divide="ignore"):
        return Ratios(
            conditioned=bool(rows["conditioned"][good].all()),
            all_ranks=float(np.exp(np.log(rows["excused"][good]).mean())),
            one_rank=float(rows["excused"].max()),
            largest=float(rows["excused_max"][good].max()),
            band=float(np.exp(np.log(rows["band"][good]).mean())),
        )
