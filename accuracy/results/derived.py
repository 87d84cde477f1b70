"""Which numbers follow exactly from others of their row? Published tables leave them out; reading rebuilds them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

RATIOS = {  # each is the first column over the second, see `ratio`
    "x_floor": ("error_rel", "floor_rel"),
    "x_single_device": ("error_rel", "single_device_rel"),
}

SUMMARIES = {  # of single ranks: each follows from others but for their rounding
    "error_rel": ("error_rms", "reference_rms"),
    "error_bias_t": ("error_bias", "error_rms"),
    "diff_rms": ("diff_rel", "reference_rms"),  # but for single device's norm in place of the reference's
}

_SHAPE = ("batch", "seqlen", "seqlen_q", "heads", "heads_kv", "head_dim", "world_size")

SAID_LATER = ("against", "sums")  # columns that published tables may lack, "" in all of their rows


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
    whole = _filled(results.assign(**said), summaries(results))
    return _filled(whole, _ratios(whole))


def without_derived(results: pd.DataFrame) -> pd.DataFrame:
    """The table without the ratios that `with_derived` gives back in every digit."""
    return results.assign(
        **{name: results[name].mask(results[name] == each) for name, each in _ratios(results).items()}
    )


def summaries(results: pd.DataFrame) -> dict[str, pd.Series]:
    """error_rel, error_bias_t and diff_rms of single ranks from the columns that each follows from; NaN where nothing
    follows."""
    import pandas as pd

    if not {"tensor", "rank", *_SHAPE, *SUMMARIES, *itertools.chain(*SUMMARIES.values())} <= set(results):
        return {}
    names = "error_rms", "reference_rms", "error_bias", "diff_rel"
    rms, reference, bias, apart = (_numbers(results, name) for name in names)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found = {
            "error_rel": rms / reference,
            "error_bias_t": bias / np.sqrt((rms**2 - bias**2) / _elements(results)),
            "diff_rms": apart * reference,
        }
    single = (results["rank"] >= 0).to_numpy(dtype=bool, na_value=False)
    usual = {name: np.where(single & np.isfinite(each), each, np.nan) for name, each in found.items()}
    return {name: pd.Series(each, index=results.index) for name, each in usual.items()}


def _elements(results: pd.DataFrame) -> np.ndarray:
    """Elements of a rank's part of the tensor, where ranks have equal parts."""
    batch, seqlen, seqlen_q, heads, heads_kv, head_dim, ranks = (_numbers(results, name) for name in _SHAPE)
    of_keys = results["tensor"].isin(["dk", "dv"]).to_numpy()
    queries = np.where(np.nan_to_num(seqlen_q) > 0, seqlen_q, seqlen)
    dims = np.where(results["tensor"].isin(["lse", "delta"]), 1, head_dim)
    elements: np.ndarray = batch * np.where(of_keys, seqlen * heads_kv, queries * heads) * dims / ranks
    return elements


def _ratios(results: pd.DataFrame) -> dict[str, pd.Series]:
    """Derived columns from the two that each follows from; NaN where nothing was measured."""
    import pandas as pd

    found = {}
    for name, given in RATIOS.items():
        if {name, *given} <= set(results):
            above, below = (_numbers(results, each) for each in given)
            found[name] = pd.Series(ratio(above, below, zero_by_zero=1.0), index=results.index)
    return found


def _numbers(results: pd.DataFrame, name: str) -> np.ndarray:
    numbers: np.ndarray = results[name].to_numpy(dtype="float64", na_value=np.nan)
    return numbers


def _filled(results: pd.DataFrame, found: dict[str, pd.Series]) -> pd.DataFrame:
    return results.assign(**{name: results[name].fillna(each) for name, each in found.items()})
