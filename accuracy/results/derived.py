"""Which numbers follow exactly from others of their row? Published tables leave them out; reading rebuilds them."""

import numpy as np
import pandas as pd

DERIVED = {  # each is the first column over the second, see `ratio`
    "x_floor": ("error_rel", "floor_rel"),
    "x_single_device": ("error_rel", "single_device_rel"),
    "x_exact": ("error_rel", "exact_rel"),  # of stacks
}

SAID_LATER = ("against",)  # columns that published tables may lack, "" in all of their rows


def ratio(above: np.ndarray, below: np.ndarray, zero_by_zero: float) -> np.ndarray:
    """above / below for values >= 0: x / 0 is infinite, infinite / infinite is 1, 0 / 0 as told."""
    same = np.isinf(above) & np.isinf(below)
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.where(same, 1.0, above / below)
    return np.where((above == 0) & (below == 0), zero_by_zero, result)


def with_derived(results: pd.DataFrame) -> pd.DataFrame:
    """The table with the derived numbers that it lacks, and with the usual text of settings that it is older than.
    What it has stays as it is."""
    said = {
        name: results[name].astype("str").where(results[name].notna(), "") for name in SAID_LATER if name in results
    }
    return results.assign(**said, **{name: results[name].fillna(found) for name, found in _rebuilt(results).items()})


def without_derived(results: pd.DataFrame) -> pd.DataFrame:
    """The table without the derived numbers that `with_derived` gives back in every digit."""
    return results.assign(
        **{name: results[name].mask(results[name] == each) for name, each in _rebuilt(results).items()}
    )


def _rebuilt(results: pd.DataFrame) -> dict[str, pd.Series]:
    """Derived columns from the two that each follows from; NaN where nothing was measured."""
    found = {}
    for name, given in DERIVED.items():
        if {name, *given} <= set(results):
            above, below = (results[each].to_numpy(dtype="float64", na_value=np.nan) for each in given)
            found[name] = pd.Series(ratio(above, below, zero_by_zero=1.0), index=results.index)
    return found
