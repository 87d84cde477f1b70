"""What does each series spend, and what does no other beat? Numbers of all seeds as one, for charts and tables."""

from typing import Any

import numpy as np
import pandas as pd

from accuracy.core.number import geometric_mean


def cost_of(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Per key and tensor: seconds of the fastest seed, as the first one to come compiles kernels and whatever else
    disturbs a time makes it longer; median peak bytes, geometric mean error."""
    how: dict[str, Any] = {
        "seconds": "min",
        "peak_bytes": "median",
        "error_rel": geometric_mean,
        "x_single_device": geometric_mean,
    }
    costs = rows.groupby([*keys, "tensor"]).agg(how).reset_index()
    return costs[costs["seconds"].notna() | costs["peak_bytes"].notna()]


def front(costs: pd.DataFrame) -> pd.Series:
    """Which rows no other row beats: Pareto's front, less being better in every column. No number is missing."""
    values = costs.to_numpy(dtype=float)
    beaten = [((values <= row).all(axis=1) & (values < row).any(axis=1)).any() for row in values]
    return pd.Series(np.logical_not(beaten), index=costs.index, dtype=bool)
