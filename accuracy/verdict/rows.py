"""How do rules select rows and average over them, thousands of times, without the cost of a frame each time?

In: a table and the places of some of its rows. Out: their values as arrays, parts of them, and statistics that leave
missing numbers out.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.results.table import IDENTITY, OF_STACKS, RESULTS_SCHEMA


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a table. columns: of the whole table, by name; places: of these rows in it, in their order."""

    columns: dict[str, np.ndarray]
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name][self.places]

    @property
    def none(self) -> "Rows":
        """No rows of the same table."""
        return Rows(self.columns, self.places[:0])

    def where(self, chosen: np.ndarray) -> "Rows":
        """Those rows for which it is true."""
        return Rows(self.columns, self.places[chosen])

    def joined(self, more: "Rows") -> "Rows":
        """These rows, then more of the same table."""
        return Rows(self.columns, np.concatenate([self.places, more.places]))

    def by(self, *names: str) -> dict[tuple[Any, ...], "Rows"]:
        """Rows with the same values in these columns together; groups and their rows in the order of the rows."""
        found: dict[tuple[Any, ...], list[int]] = {}
        for place, key in zip(self.places, zip(*(self[name] for name in names), strict=True), strict=True):
            found.setdefault(key, []).append(place)
        return {key: Rows(self.columns, np.array(places)) for key, places in found.items()}


def in_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """The same rows in one block of memory for each kind of column: pandas takes rows from its own texts column by
    column, dozens of times a variant."""
    texts = [name for name in rows if isinstance(rows[name].dtype, pd.StringDtype)]
    return rows.astype(dict.fromkeys(texts, "object")).copy()


def columns_of(table: pd.DataFrame, names: Iterable[str] = RESULTS_SCHEMA.names) -> dict[str, np.ndarray]:
    """Metrics and counts as float64, where NaN is missing; other columns as they are, texts as objects."""
    numbers = set(RESULTS_SCHEMA.names) - set(IDENTITY)
    return {
        name: table[name].to_numpy("float64" if name in numbers else _plain(table[name]))
        for name in names
        if name not in OF_STACKS
    }


def combinations(table: pd.DataFrame, names: Iterable[str]) -> np.ndarray:
    """Of each row, the number of its values in these columns, in the order in which such values come; what is missing
    is a value."""
    numbers = np.zeros(len(table), dtype=int)
    for name in names:
        codes, distinct = pd.factorize(table[name])
        if len(distinct) != 1 or (codes < 0).any():
            numbers, _ = pd.factorize(numbers * (len(distinct) + 1) + codes)
    return numbers


def _plain(column: pd.Series) -> str | None:
    """The dtype of an array that is quick to take from: pandas' own texts are not."""
    return None if column.dtype.kind in "if" else "object"


def mean(values: np.ndarray) -> float:
    """NaN where there is none."""
    missing = np.isnan(values)
    count = len(values) - np.count_nonzero(missing)
    return float((values.sum() if count == len(values) else np.nansum(values)) / count) if count else math.nan


def present(values: np.ndarray) -> np.ndarray:
    """Of numbers from 0 on: 0 where one is missing, and the largest that is finite for infinity."""
    return np.minimum(np.fmax(values, 0.0), np.finfo("float64").max)


def largest(values: np.ndarray) -> float:
    """NaN where there is none."""
    present = values[~np.isnan(values)]
    return float(present.max()) if len(present) else math.nan


def typical(values: np.ndarray) -> float:
    """Geometric mean over the seeds; infinite if one is, the least number above 0 for zero."""
    present = values[~np.isnan(values)]
    return float(np.exp(np.log(np.maximum(present, 5e-324)).mean())) if len(present) else math.nan
