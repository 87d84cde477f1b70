"""How do all rows travel inside the page? Columns as JSON, gzip, base64: no byte of it can end a script element.

What is the same in every row of a case is said once for the case; texts are places in a list of the distinct ones.
Where the rows are too many for six significant digits, digits go first, then per-rank rows of the later seeds; rows
over all ranks stay to the last. What was left out is said in the page.
"""

import base64
import gzip
import json
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from accuracy.core.number import count
from accuracy.report.reproduce import command
from accuracy.results.table import ALL_RANKS

BUDGET_BYTES = 3_000_000  # of base64 text: 50,000 rows fit, and the page stays below 5 MB with its charts
_DIGITS = {6: 1_000_000, 4: BUDGET_BYTES}  # six digits as long as they cost no more than the charts


@dataclass(frozen=True)
class EmbeddedRows:
    """encoded: base64 of gzip; rows: how many it holds; note: what was left out or rounded."""

    encoded: str
    rows: int
    note: str


EMPTY = EmbeddedRows("", 0, "")


def encode_rows(results: pd.DataFrame, budget: int = BUDGET_BYTES) -> EmbeddedRows:
    """All rows, or as many as fit. results: the labelled table."""
    for digits, most in _DIGITS.items():
        encoded = _encoded(results, digits)
        if len(encoded) <= min(most, budget):
            return EmbeddedRows(encoded, len(results), _note(len(results), len(results), digits))
    return _fitting(results, budget, digits, len(encoded))


def _fitting(results: pd.DataFrame, budget: int, digits: int, size: int) -> EmbeddedRows:
    """Rows over all ranks first, then per-rank rows seed by seed, cut where the budget ends."""
    later = (results["rank"] != ALL_RANKS) & results["tensor"].notna()
    priority = results.assign(_later=later).sort_values(["_later", "seed"], kind="stable").index
    keep = len(results)
    while True:
        keep = int(keep * min(0.95, 0.98 * budget / size))
        encoded = _encoded(results.loc[sorted(priority[:keep])], digits)
        size = len(encoded)
        if size <= budget or keep == 0:
            return EmbeddedRows(encoded, keep, _note(keep, len(results), digits))


def _note(kept: int, total: int, digits: int) -> str:
    rounded = f"Numbers are rounded to {digits} significant digits; results.parquet has every row."
    if kept == total:
        return f"All {count(total, 'row')}. {rounded}"
    return (
        f"This file holds {kept:,} of {count(total, 'row')}: {total - kept:,} were left out to keep it small, "
        f"per-rank rows of the later seeds first. {rounded}"
    )


def _encoded(rows: pd.DataFrame, digits: int) -> str:
    case, _ = pd.factorize(rows["case_id"])
    _, first = np.unique(case, return_index=True)
    firsts = rows.iloc[first]
    columns = []
    for name in rows:
        same = _same_in_each_case(rows[name], first[case])
        about = f'"name":{json.dumps(name)},"by_case":{json.dumps(same)}'
        columns.append(f"{{{about},{_values(firsts[name] if same else rows[name], digits)}}}")
    commands = json.dumps([command(row) for row in firsts.to_dict("records")])
    cases = json.dumps(case.tolist(), separators=(",", ":"))
    text = f'{{"count":{len(rows)},"cases":{cases},"commands":{commands},"columns":[{",".join(columns)}]}}'
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)).decode()


def _same_in_each_case(values: pd.Series, first: np.ndarray) -> bool:
    """first: for every row the place of the first row of its case."""
    codes, _ = pd.factorize(values)
    return bool((codes == codes[first]).all())


def _values(values: pd.Series, digits: int) -> str:
    """`"texts":[...],"places":[...]` (-1: missing) or `"numbers":[...]`."""
    if not pd.api.types.is_numeric_dtype(values):
        places, distinct = pd.factorize(values)
        return f'"texts":{json.dumps([str(text) for text in distinct])},"places":{json.dumps(places.tolist())}'
    numbers = values.to_numpy(dtype="float64", na_value=np.nan)
    return f'"numbers":[{",".join(_number(value, digits) for value in numbers.tolist())}]'


def _number(value: float, digits: int) -> str:
    """As JSON can say it, which has no infinity: that travels as text. Whole numbers below 2^53 keep all digits."""
    if value != value:
        return "null"
    if math.isinf(value):
        return '"inf"' if value > 0 else '"-inf"'
    if value == int(value) and abs(value) < 2**53:
        return str(int(value))
    return f"{value:.{digits}g}"
