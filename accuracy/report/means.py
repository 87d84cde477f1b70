"""Geometric means of groups of rows, as pandas' `agg` gives them, without a Series made for each group."""

from collections.abc import Sequence

import pandas as pd

from accuracy.core.number import geometric_mean


def geometric_means(rows: pd.DataFrame, keys: Sequence[str], columns: Sequence[str], sort: bool = True) -> pd.DataFrame:
    """Of columns, by the values of the keys, sorted or as they come; rows that lack one of these are left out."""
    groups = rows.groupby(list(keys), sort=sort)
    index, numbers = groups.size().index, groups.ngroup().tolist()
    found = {}
    for name in columns:
        values: list[list[float]] = [[] for _ in range(len(index) + 1)]  # the last: of rows in no group, -1
        for number, value in zip(numbers, rows[name].tolist(), strict=True):
            values[number].append(value)
        found[name] = list(map(geometric_mean, values[:-1]))
    return pd.DataFrame(found, index, dtype="float64")
