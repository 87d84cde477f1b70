"""How far is a healthy variant from the reference, in times the single-device kernel's error? One number a width.

A ratio in 16 bits says nothing of float32, where single device's error is 2^-16 as large: so each width of dtypes has a
number of its own, the largest over problems, seeds and world sizes, as the table that is printed has it. Gaussian
inputs lead; others stand in brackets where they go further, as peaked ones do where scores are rounded to 16 bits.
Inputs whose answer is exact, rows in which neither single device nor the rounding floor has an error, and float64, the
reference's own dtype, have no ratio.
"""

from collections.abc import Sequence

import pandas as pd

from accuracy.core.dtype import DTYPES
from accuracy.core.number import plain
from accuracy.core.probes import PROBES
from accuracy.results.table import ALL_RANKS, OK
from accuracy.verdict.evidence import INDEPENDENT, times_single_device
from accuracy.verdict.rule.excess import EXACT


def within(results: pd.DataFrame, dtypes: Sequence[str], ranks: str) -> str:
    """`2.49 times the single-device kernel's error at 1 rank in bfloat16, 2.91 times in float32, rounding in float64`.

    results: rows of one variant; dtypes: those to tell of; ranks: the world sizes in words.
    """
    rows = results[(results["rank"] == ALL_RANKS) & (results["status"] == OK) & results["dtype"].isin(dtypes)]
    rows = rows[~rows["tensor"].isin(["lse"]) & ~rows["inputs"].isin(list(PROBES)) & rows["error_rel"].notna()]
    rows = rows[(rows["single_device_rel"] > 0) | (rows["floor_rel"] > 0)]
    rows = rows.assign(_times=times_single_device(rows), _width=rows["dtype"].map(lambda name: DTYPES[name].bytes))
    said: list[str] = []
    for _, same in rows.groupby("_width"):
        names = [name for name in dtypes if name in set(same["dtype"])]
        if EXACT in names:
            said.append(f"rounding {'' if said else f'{ranks} '}in {EXACT}")
            continue
        unit = "times" if said else f"times the single-device kernel's error {ranks}"
        number, more = _largest(same)
        said.append(f"{number} {unit} in {' and '.join(names)}{more}")
    return ", ".join(said)


def _largest(rows: pd.DataFrame) -> tuple[str, str]:
    """The largest ratio, at least 1, on Gaussian inputs where there are any, and the others' in brackets where it is
    more."""
    by_inputs = rows.groupby("inputs")["_times"].max().clip(lower=1.0)
    usual = float(by_inputs.get(INDEPENDENT, by_inputs.max()))
    number, most = plain(usual), float(by_inputs.max())
    return number, f" ({plain(most)} on {by_inputs.idxmax()} inputs)" if plain(most) != number else ""
