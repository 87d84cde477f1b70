"""One number a tensor: how many times single device's error has a variant?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from accuracy.core.dtype import PROBES, REFERENCE_ERROR
from accuracy.results.table import ALL_RANKS, ALL_TENSORS

if TYPE_CHECKING:
    import pandas as pd


NEEDED = (
    "rank", "tensor", "inputs", "variant", "kernel", "dtype", "world_size", "error_rel", "floor_rel", "x_floor",
    "x_single_device",
)  # fmt: skip
"""Columns that it reads."""


def summary(results: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return what the numbers are, and a row for each dtype, variant and world size with a column for each tensor:
    error over single device's, of all ranks, the largest over seeds and problems; of a table of single device alone the
    error over the rounding floor. Inputs with an exact answer count where there are no others, as single device's
    error may happen to be 0."""
    rows = results[(results["rank"] == ALL_RANKS) & results["tensor"].notna()]
    probing = rows["inputs"].isin(list(PROBES))
    rows = rows if probing.all() else rows[~probing]
    if len(rows) and (rows["variant"] == "single_device").all():
        title = "error / floor (relative Frobenius, worst seed and problem)"
        index, value = ["dtype", "kernel"], "x_floor"
    else:
        title = "error / single device's error (relative Frobenius, all ranks, worst seed)"
        index, value = ["dtype", "variant", "world_size"], "x_single_device"
        exact = np.isinf(rows[value]) & np.isfinite(rows["error_rel"])  # single device has no error
        least = rows["error_rel"] / rows["floor_rel"].clip(lower=REFERENCE_ERROR)
        rows = rows.assign(**{value: rows[value].mask(exact, least)})
        title += "\nwhere that is 0: over the rounding floor, or the reference's own error" if exact.any() else ""
    found = rows.pivot_table(index=index, columns="tensor", values=value, aggfunc="max")
    title += "\ndelta: the row sums of dout times out" if "delta" in found else ""
    return title, found[[name for name in ALL_TENSORS if name in found]]
