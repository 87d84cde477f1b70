"""How do all rows travel inside the page? Columnar JSON, gzip, base64: no byte of it can end a script
element.

Where the budget does not allow all rows at six significant digits, digits go first, then per-rank rows of
the later seeds; rows over all ranks stay to the last. What was left out is said in the page.
"""

import base64
import gzip
import json
import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from accuracy.report.number import count
from accuracy.report.reproduce import command
from accuracy.table import ALL_RANKS

BUDGET_BYTES = 3_000_000  # of base64 text: the page is to stay below 5 MB with its charts
_DIGITS = (6, 4)


@dataclass(frozen=True)
class Block:
    """encoded: base64 of gzip of JSON; rows: how many it holds; note: what was left out or rounded."""

    encoded: str
    rows: int
    note: str


EMPTY = Block("", 0, "")


def encode_rows(results: pd.DataFrame, budget: int = BUDGET_BYTES) -> Block:
    """All rows, or as many as fit. results: the labelled table."""
    for digits in _DIGITS:
        encoded = _encoded(results, digits)
        if len(encoded) <= budget:
            return Block(encoded, len(results), _note(len(results), len(results), digits))
    return _fitting(results, budget, len(encoded))


def _fitting(results: pd.DataFrame, budget: int, size: int) -> Block:
    """Rows over all ranks first, then per-rank rows seed by seed, cut where the budget ends."""
    later = (results["rank"] != ALL_RANKS) & results["tensor"].notna()
    priority = results.assign(_later=later).sort_values(["_later", "seed"], kind="stable").index
    keep = len(results)
    while True:
        keep = int(keep * min(0.95, 0.98 * budget / size))
        encoded = _encoded(results.loc[sorted(priority[:keep])], _DIGITS[-1])
        size = len(encoded)
        if size <= budget or keep == 0:
            return Block(encoded, keep, _note(keep, len(results), _DIGITS[-1]))


def _note(kept: int, total: int, digits: int) -> str:
    rounded = f"Numbers are rounded to {digits} significant digits; results.parquet has all of them."
    if kept == total:
        return f"All {count(total, 'row')}. {rounded}"
    return (
        f"This file holds {kept:,} of {count(total, 'row')}: {total - kept:,} were left out to keep it below "
        f"5 MB, per-rank rows of the later seeds first. {rounded}"
    )


def _encoded(rows: pd.DataFrame, digits: int) -> str:
    content = {"count": len(rows), "columns": [_column(str(name), rows[name], digits) for name in rows]}
    firsts = rows.drop_duplicates("case_id").to_dict("records")
    content["commands"] = {str(row["case_id"]): command(row) for row in firsts}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()


def _column(name: str, values: pd.Series, digits: int) -> dict[str, Any]:
    """Text as codes into a list of its distinct values, numbers as they are; null where missing."""
    if pd.api.types.is_numeric_dtype(values):
        return {"name": name, "numbers": _numbers(values, digits)}
    codes, distinct = pd.factorize(values, use_na_sentinel=True)
    return {"name": name, "codes": codes.tolist(), "texts": [str(text) for text in distinct]}


def _numbers(values: pd.Series, digits: int) -> list[float | int | str | None]:
    if pd.api.types.is_integer_dtype(values):
        return [None if value is pd.NA else int(value) for value in values]
    return [_number(value, digits) for value in values.to_numpy(dtype="float64").tolist()]


def _number(value: float, digits: int) -> float | int | str | None:
    """To so many significant digits. JSON has no infinity: it travels as text."""
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.{digits - 1}e}")
