"""Rows of a table as numpy arrays, which rules select and average thousands of times, and the names of variants."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.results.cell import SINGLE_DEVICE
from accuracy.results.table import IDENTITY, RESULTS_SCHEMA

KERNEL = fields.names(fields.KERNEL)
VARIANT = fields.names(fields.VARIANT, fields.PRECISION)
_CONFIGURED = (*VARIANT, *KERNEL)
Names = dict[tuple[Any, ...], str]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a table. columns: every column of the table by name; index: where these rows are in it, in order."""

    columns: dict[str, np.ndarray]
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name][self.index]

    def where(self, chosen: np.ndarray) -> "Rows":
        """The rows for which a boolean array is true."""
        return Rows(self.columns, self.index[chosen])

    def joined(self, more: "Rows") -> "Rows":
        """These rows, then more of the same table."""
        return Rows(self.columns, np.concatenate([self.index, more.index]))

    def by(self, *names: str) -> dict[tuple[Any, ...], "Rows"]:
        """Groups of rows that have the same values in these columns, in the order of their first rows."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for row, key in zip(self.index, zip(*(self[name] for name in names), strict=True), strict=True):
            found.setdefault(key, []).append(row)
        return {key: Rows(self.columns, np.array(rows)) for key, rows in found.items()}


def in_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """The same rows with texts as objects in one block of memory: pandas takes rows from its own texts column by
    column, dozens of times a variant."""
    texts = [name for name in rows if isinstance(rows[name].dtype, pd.StringDtype)]
    return rows.astype(dict.fromkeys(texts, "object")).copy()


def columns_of(table: pd.DataFrame) -> dict[str, np.ndarray]:
    """Metrics and counts as float64 arrays, where NaN is missing; other numbers as they are, texts as objects."""
    metrics = set(RESULTS_SCHEMA.names) - set(IDENTITY)

    def dtype(name: str) -> str | None:
        return "float64" if name in metrics else None if table[name].dtype.kind in "if" else "object"

    return {name: table[name].to_numpy(dtype(name)) for name in RESULTS_SCHEMA.names}


def combinations(table: pd.DataFrame, names: Iterable[str]) -> np.ndarray:
    """Number each row by its values in these columns, in the order in which combinations come; missing is a value."""
    numbers = np.zeros(len(table), dtype=int)
    for name in names:
        codes, distinct = pd.factorize(table[name])
        if len(distinct) != 1 or (codes < 0).any():
            numbers, _ = pd.factorize(numbers * (len(distinct) + 1) + codes)
    return numbers


def is_plain(masks: "pd.Series[str]") -> "pd.Series[bool]":
    """Return which masks have no window, documents or padding."""
    return ~masks.astype(str).str.contains("=")


def mean(values: np.ndarray) -> float:
    """Mean of the present values; NaN where there is none."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else math.nan


def present(values: np.ndarray) -> np.ndarray:
    """Numbers from 0 on, where 0 stands for a missing one and the largest finite one for infinity."""
    return np.minimum(np.fmax(values, 0.0), np.finfo("float64").max)


def largest(values: np.ndarray) -> float:
    """The largest of the present values; NaN where there is none."""
    values = values[~np.isnan(values)]
    return float(values.max()) if len(values) else math.nan


def typical(values: np.ndarray) -> float:
    """Geometric mean over the seeds; infinite if one is, the least number above 0 for zero."""
    values = values[~np.isnan(values)]
    return float(np.exp(np.log(np.maximum(values, 5e-324)).mean())) if len(values) else math.nan


def names_of(results: pd.DataFrame) -> Names:
    """The shortest name that tells each configured variant of a table from the others.

    `ring (lse=bfloat16)` where ring was also measured under another policy; where several kernels were run alone in one
    dtype, the kernel's name.
    """
    cases = results.drop_duplicates([*_CONFIGURED, "dtype"])
    rows = cases.to_dict("records")
    several = any(len(same[list(KERNEL)].drop_duplicates()) > 1 for _, same in cases.groupby("dtype"))
    if several and (cases["variant"] == SINGLE_DEVICE).all():
        return {_configured(row): fields.spoken(fields.label(row, KERNEL)) for row in rows}
    varying = {
        variant: [name for name in VARIANT[1:] if same[name].nunique(dropna=False) > 1]
        for variant, same in cases.groupby("variant")
    }
    return {_configured(row): fields.spoken(fields.label(row, ["variant", *varying[row["variant"]]])) for row in rows}


def with_names(rows: pd.DataFrame, names: Names) -> pd.DataFrame:
    """A table, or its verdicts, with the column `named`."""
    numbers = combinations(rows, _CONFIGURED)
    _, first = np.unique(numbers, return_index=True)
    distinct = [names[key] for key in rows.iloc[first][list(_CONFIGURED)].itertuples(index=False, name=None)]
    return rows.assign(named=[distinct[number] for number in numbers.tolist()])


def _configured(row: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _CONFIGURED)
