"""What is each variant called, so that no two of a table share a name?

`ring (lse=bfloat16)` where ring was also measured under another policy; where several kernels were run alone, the
kernel's name.
"""

from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.results.cell import SINGLE_DEVICE
from accuracy.verdict.rows import combinations

VARIANT = fields.names(fields.VARIANT, fields.PRECISION)
KERNEL = fields.names(fields.KERNEL)
_KEY = (*VARIANT, *KERNEL)
Names = dict[tuple[Any, ...], str]


def names_of(results: pd.DataFrame) -> Names:
    """The shortest name that tells a variant as configured from the others, by the columns that say how it is."""
    cases = results.drop_duplicates([*_KEY, "dtype"])
    if _kernels_alone(cases):
        return {_key(row): fields.spoken(row, KERNEL) for row in cases.to_dict("records")}
    own = {
        variant: [name for name in VARIANT[1:] if rows[name].nunique(dropna=False) > 1]
        for variant, rows in cases.groupby("variant")
    }
    return {_key(row): fields.spoken(row, ["variant", *own[row["variant"]]]) for row in cases.to_dict("records")}


def with_names(rows: pd.DataFrame, names: Names) -> pd.DataFrame:
    """A table, or its verdicts, with the column `named`."""
    numbers = combinations(rows, _KEY)
    _, first = np.unique(numbers, return_index=True)
    distinct = [names[key] for key in rows.iloc[first][list(_KEY)].itertuples(index=False, name=None)]
    return rows.assign(named=[distinct[number] for number in numbers.tolist()])


def _kernels_alone(cases: pd.DataFrame) -> bool:
    """Whether nothing but kernels was run once, several of them in the same dtype."""
    alone = bool((cases["variant"] == SINGLE_DEVICE).all())
    return alone and any(len(rows[list(KERNEL)].drop_duplicates()) > 1 for _, rows in cases.groupby("dtype"))


def _key(row: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEY)
