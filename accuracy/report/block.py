"""How do all rows travel inside the page? As a line of JSON and columns of bytes, gzip, base64: no byte of it can
end a script element.

What is the same in every row of a case is said once for the case. A measured number is two whole numbers, its
leading digits and a power of ten, and whole numbers lie byte by byte (all lowest bytes, then all next ones): that
compresses to half of what their decimal text does. Where the rows are too many for six significant digits, digits go
first, then per-rank rows of the later seeds; rows over all ranks stay to the last. What was left out is said in the
page.
"""

import base64
import gzip
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from accuracy.core.number import count
from accuracy.report.reproduce import command
from accuracy.results.table import ALL_RANKS

BUDGET_BYTES = 2_000_000  # of base64 text: 50,000 rows fit, and the page stays below 5 MB with its charts
_DIGITS = {6: 1_000_000, 4: BUDGET_BYTES}  # six digits as long as they cost no more than the charts
_DIGIT_BYTES = {6: 3, 4: 2}  # 10^6 < 2^23, 10^4 < 2^15
_POWER_BYTES = 2
_WHOLE_BYTES = 4
_MISSING, _INFINITE = -(2**15), 2**15 - 1  # in place of a power of ten
_MISSING_WHOLE = -(2**31)

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """encoded: base64 of gzip; rows: how many it holds; note: what was left out or rounded."""

    encoded: str
    rows: int
    note: str


EMPTY = Block("", 0, "")


def encode_rows(results: pd.DataFrame, budget: int = BUDGET_BYTES) -> Block:
    """All rows, or as many as fit. results: the labelled table."""
    for digits, most in _DIGITS.items():
        encoded = _encoded(results, digits)
        if len(encoded) <= min(most, budget):
            return Block(encoded, len(results), _note(len(results), len(results), digits))
    return _fitting(results, budget, digits, len(encoded))


def _fitting(results: pd.DataFrame, budget: int, digits: int, size: int) -> Block:
    """Rows over all ranks first, then per-rank rows seed by seed, cut where the budget ends."""
    later = (results["rank"] != ALL_RANKS) & results["tensor"].notna()
    priority = results.assign(_later=later).sort_values(["_later", "seed"], kind="stable").index
    keep = len(results)
    while True:
        keep = int(keep * min(0.95, 0.98 * budget / size))
        encoded = _encoded(results.loc[sorted(priority[:keep])], digits)
        size = len(encoded)
        if size <= budget or keep == 0:
            return Block(encoded, keep, _note(keep, len(results), digits))


def _note(kept: int, total: int, digits: int) -> str:
    rounded = f"Numbers are rounded to {digits} significant digits; results.parquet has every row in full."
    if kept == total:
        return f"All {count(total, 'row')}. {rounded}"
    return (
        f"This file holds {kept:,} of {count(total, 'row')}: {total - kept:,} were left out to keep it small, "
        f"per-rank rows of the later seeds first. {rounded}"
    )


def _encoded(rows: pd.DataFrame, digits: int) -> str:
    """The head names the columns in order; the bytes of those that vary within a case follow it in that order."""
    case, _ = pd.factorize(rows["case_id"])
    _, first = np.unique(case, return_index=True)
    firsts = rows.iloc[first]
    columns, bodies = [], [_bytes(case, _WHOLE_BYTES)]
    for name in rows:
        if _same_in_each_case(rows[name], first[case]):
            columns.append({"name": name, "text": _is_text(rows[name]), "cases": [_plain(v) for v in firsts[name]]})
        else:
            column, body = _by_row(rows[name], digits)
            columns.append({"name": name, **column})
            bodies.append(body)
    commands = [command(row) for row in firsts.to_dict("records")]
    head = {"count": len(rows), "columns": columns, "commands": commands}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    packed = gzip.compress(text.encode() + b"\n" + b"".join(bodies), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode()


def _same_in_each_case(values: pd.Series, first: npt.NDArray[np.intp]) -> bool:
    """first: for every row the place of the first row of its case."""
    codes, _ = pd.factorize(values)
    return bool((codes == codes[first]).all())


def _is_text(values: pd.Series) -> bool:
    return not pd.api.types.is_numeric_dtype(values)


def _plain(value: Any) -> float | int | str | None:
    """As JSON can say it, which has no infinity: that travels as text."""
    if isinstance(value, str) or pd.isna(value):
        return value if isinstance(value, str) else None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return int(value) if value == int(value) and abs(value) < 2**53 else float(f"{value:.5e}")


def _by_row(values: pd.Series, digits: int) -> tuple[dict[str, Any], bytes]:
    """Text as places in a list of its distinct values, whole numbers as they are, others as digits and power."""
    if _is_text(values):
        places, distinct = pd.factorize(values)
        return {"texts": [str(text) for text in distinct]}, _bytes(places, _WHOLE_BYTES)
    numbers = values.to_numpy(dtype="float64", na_value=np.nan)
    if _whole(numbers):  # a column of whole numbers arrives as floats where one is missing
        return {"bytes": _WHOLE_BYTES}, _bytes(np.nan_to_num(numbers, nan=_MISSING_WHOLE), _WHOLE_BYTES)
    leading, power = _decimal(numbers, digits)
    width = _DIGIT_BYTES[digits]
    return {"bytes": width, "power": _POWER_BYTES}, _bytes(leading, width) + _bytes(power, _POWER_BYTES)


def _whole(numbers: npt.NDArray[np.float64]) -> bool:
    present = numbers[~np.isnan(numbers)]
    return bool(((present == np.rint(present)) & (np.abs(present) < -_MISSING_WHOLE)).all())


def _decimal(values: npt.NDArray[np.float64], digits: int) -> tuple[Whole, Whole]:
    """leading * 10^power, to so many significant digits."""
    usual = np.isfinite(values) & (values != 0)
    found = values[usual]
    powers = np.floor(np.log10(np.abs(found))) - (digits - 1)
    half = np.floor(-powers / 2)  # in two steps: 10^329, for the least number there is, is no number
    leading, power = np.zeros(len(values), dtype="int64"), np.zeros(len(values), dtype="int64")
    leading[usual] = np.rint(found * 10.0**half * 10.0 ** (-powers - half))
    power[usual] = powers
    power[np.isnan(values)] = _MISSING
    power[np.isinf(values)] = _INFINITE
    leading[np.isinf(values)] = np.sign(values[np.isinf(values)])
    return leading, power


def _bytes(values: npt.NDArray[Any], width: int) -> bytes:
    """All lowest bytes, then all next ones, `width` of them; two's complement."""
    return values.astype("<i8").view("u1").reshape(-1, 8)[:, :width].T.tobytes()
