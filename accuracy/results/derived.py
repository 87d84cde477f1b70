"""Which numbers follow exactly from others of their row? Published tables leave them out; reading rebuilds them.

In: the columns of a table. Out: the same columns with the ratios filled in. No torch here.
"""

import numpy as np
import pandas as pd

DERIVED = {
    "x_floor": ("error_rel", "floor_rel"),
    "x_single_device": ("error_rel", "single_device_rel"),
    "x_exact": ("error_rel", "exact_rel"),  # of stacks
}
"""Each is the first column over the second, see `ratio`."""


def ratio(above: np.ndarray, below: np.ndarray, zero_by_zero: float) -> np.ndarray:
    """above / below for values >= 0: x / 0 is infinite, infinite / infinite is 1, 0 / 0 as told."""
    same = np.isinf(above) & np.isinf(below)
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.where(same, 1.0, above / below)
    return np.where((above == 0) & (below == 0), zero_by_zero, result)


def rebuilt(results: pd.DataFrame, name: str) -> np.ndarray:
    """A derived column (rows,) from the two that it follows from; NaN where nothing was measured."""
    above, below = (results[each].to_numpy(dtype="float64", na_value=np.nan) for each in DERIVED[name])
    return ratio(above, below, zero_by_zero=1.0)


def with_derived(results: pd.DataFrame) -> pd.DataFrame:
    """The table with the derived numbers that it lacks. Those that it has stay as they are."""
    found = {name: results[name].where(results[name].notna(), rebuilt(results, name)) for name in derived_of(results)}
    return results.assign(**found)


def without_derived(results: pd.DataFrame) -> pd.DataFrame:
    """The table without the derived numbers that `with_derived` gives back in every digit."""
    found = {name: results[name].mask(results[name] == rebuilt(results, name)) for name in derived_of(results)}
    return results.assign(**found)


def derived_of(results: pd.DataFrame) -> list[str]:
    """The derived columns that a table can have."""
    return [name for name, given in DERIVED.items() if {name, *given} <= set(results)]
