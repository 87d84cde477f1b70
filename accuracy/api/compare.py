"""`accuracy.compare`: two runs, cell by cell: which error is larger, and is that more than the luck of a seed?"""

from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.api.tables import load
from accuracy.core.errors import ConfigError
from accuracy.gate import judge
from accuracy.results.cell import KEYS, Cell, Key, measured
from accuracy.results.run_table import RunTable

Table = pd.DataFrame | str | Path


def compare(a: Table, b: Table) -> pd.DataFrame:
    """b beside a, one row for each setting and tensor that both have.

    a, b: tables of `accuracy.measure`, or folders of runs. A setting in which each of them has one value is compared
    across, as the variant of two functions: `attrs["across"]` of the result names it with both values. Cells are joined
    in all other settings, seeds are pooled.

    Columns: the settings and the tensor; `error_a`, `error_b`, relative errors, geometric means over the seeds; `ratio`
    of b over a, of errors over the single-device kernel's on the same inputs; `p`, the chance of such a ratio where
    nothing differs (NaN: too few seeds to tell; Student's t, paired where the seeds are the same); `label`: identical
    (to the last bit), same, changed, improved (b is better), regression (b is worse), undecided, outlier; `reason`.
    Raises ConfigError, a ValueError, where nothing is in both.
    """
    left, right = (each if isinstance(each, pd.DataFrame) else load(each) for each in (a, b))
    if left.empty or right.empty:
        raise ConfigError("a table has no rows; give what accuracy.measure or accuracy.load returns")
    across = _across(left, right)
    for name, (old, _) in across.items():
        right = right.assign(**{name: old})
    before, after = _cells(left), _cells(right)
    found = judge.first_look(after, before)
    if not found:
        raise ConfigError("the tables share no measured cell; compare runs that agree in all settings but one")
    rows = [
        {
            **dict(zip(KEYS, key, strict=True)),
            "error_a": before[key].error,
            "error_b": after[key].error,
            "ratio": after[key].ratio / before[key].ratio,
            "p": each.p,
            "label": each.label,
            "reason": each.reason.replace("the baseline's", "the first's").replace("the baseline", "the first"),
        }
        for key, each in found.items()
    ]
    table = pd.DataFrame(rows).drop(columns=list(across))
    table.attrs["across"] = across
    return table


def _across(left: pd.DataFrame, right: pd.DataFrame) -> dict[str, tuple[Any, Any]]:
    """Settings in which each table has one value of its own."""
    names = [name for name in KEYS if name != "tensor" and left[name].nunique() == right[name].nunique() == 1]
    values = {name: (left[name].dropna().iloc[0], right[name].dropna().iloc[0]) for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def _cells(rows: pd.DataFrame) -> dict[Key, Cell]:
    return measured(RunTable(Path(), {}, rows))
