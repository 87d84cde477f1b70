"""What the demo claims, checked against its table."""

from itertools import pairwise

import numpy as np
import pandas as pd

from accuracy.core.dtype import FORMATS
from experiments.claim import Claim, largest_below, no_failure

LADDER = ("bfloat16", "float16", "float32", "float64")


def claims(results: pd.DataFrame) -> list[Claim]:
    measured = results[(results["status"] != "unsupported") & results["tensor"].notna()]
    return [_exact(measured), _ladder(measured), no_failure(results)]


def _exact(measured: pd.DataFrame) -> Claim:
    statement = "In float64 every variant agrees with the reference to 1e-12 on every rank and tensor."
    return largest_below(statement, measured[measured["dtype"] == "float64"], 1e-12, "error_rel")


def _ladder(measured: pd.DataFrame) -> Claim:
    """Slope of log error over log unit roundoff: 1 for rounding, 0 for a fault; 0.5 lies between."""
    statement = "The error falls with the unit roundoff from bfloat16 to float64 (slope above 0.5; 1 is pure rounding)."
    rows = measured[(measured["rank"] == -1) & (measured["tensor"] != "lse")]
    errors = rows.pivot_table(index=["variant", "world_size", "tensor"], columns="dtype", values="error_rel")
    steps = [(a, b) for a, b in pairwise(LADDER) if {a, b} <= set(errors.columns)]
    if not steps:
        return Claim(statement, None, "fewer than two dtypes")
    slopes = pd.concat(
        [np.log2(errors[a] / errors[b]) / (FORMATS[b].precision - FORMATS[a].precision) for a, b in steps]
    )
    return Claim(statement, bool((slopes > 0.5).all()), f"slopes from {slopes.min():.2f} to {slopes.max():.2f}")
