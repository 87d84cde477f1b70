"""How large is an error rank by rank? Its worst rank, and its mean over the ranks, each with an interval over seeds.

In: rows of a table with one row for each rank. Out: a number and half an interval for each group. The pooled norm
(`rank` -1) hides them: under a causal mask rank 0 merges nothing, and has 59% of out's squared error at 8 ranks.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit

KEYS = ("variant", "precision", "dtype", "tensor", "world_size")
CONFIDENCE = 0.95


def over_ranks(rows: pd.DataFrame, how: str, keys: Sequence[str] = KEYS) -> pd.DataFrame:
    """`x_single_device` of each case's ranks, as `how` says (max: the worst rank; mean), mean over seeds.

    Columns: the keys, `x_single_device`, and `half`, half of its 95% interval over seeds (Student's t; NaN: one seed).
    """
    single = rows[rows["rank"] >= 0]
    cases = single.groupby([*keys, "seed"], as_index=False, dropna=False)["x_single_device"].agg(how)
    seeds = cases.groupby(list(keys), dropna=False)["x_single_device"].agg(["mean", "std", "count"]).reset_index()
    degrees = (seeds["count"] - 1).clip(lower=1)
    seeds["half"] = stdtrit(degrees, (1 + CONFIDENCE) / 2) * seeds["std"] / np.sqrt(seeds["count"])
    return seeds.rename(columns={"mean": "x_single_device"}).drop(columns=["std", "count"])
