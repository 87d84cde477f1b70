"""What cannot be in a run.json or a table that `accuracy` wrote? In: what was read; out: the fault, or None."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from accuracy.core import fields
from accuracy.core.dtype import DTYPES
from accuracy.core.errors import printable
from accuracy.results import table
from accuracy.results.derived import RATIOS

LATER = fields.names(fields.PATH)  # columns that published baselines may lack
_NO_TEXTS = ("code", "reference", *fields.names(fields.STACK))  # how a row came about; the gate is of attention alone
TEXTS = [field.name for field in table.RESULTS_SCHEMA if field.type == pa.string() and field.name not in _NO_TEXTS]
_COUNTS = [each for each in fields.COLUMNS if each.type.startswith("int")]
SIZES = tuple(each.name for each in _COUNTS if each.role not in (fields.SEED, fields.STACK))
NUMBERS = ("error_rel", "error_rms", "error_max", "single_device_rel", "floor_rel")
_EVERY = dict.fromkeys((*TEXTS, *fields.names_but(fields.STACK), "rank", "nonfinite", *NUMBERS))
REQUIRED = [name for name in _EVERY if name not in LATER]
STATUSES = (table.OK, table.UNSUPPORTED, table.FAILED)
ENTRIES = (("experiment", str), ("cases", list), ("fingerprint", dict), ("provenance", dict))
MOST_SIZE = 2**40  # of a whole number that counts tokens, heads, ranks
MOST_TEXT = 2000  # letters of a text in a table; options and reasons are the longest


def of_record(about: dict[str, Any]) -> str | None:
    """What is wrong with run.json, as the rest of a sentence that its path begins."""
    version = about.get("schema_version")
    if type(version) is not int or version != table.SCHEMA_VERSION:
        return (
            f"has schema version {printable(str(version)[:20])}; this reads {table.SCHEMA_VERSION}: "
            "use the accuracy that wrote it, or measure again"
        )
    for key, kind in ENTRIES:
        if not isinstance(about.get(key), kind):
            return f"has no {key}; it is damaged, or no run of this version"
    cases, experiment = about["cases"], about["experiment"]
    if not all(isinstance(case, str) and case.isprintable() and len(case) < 100 for case in cases):
        return "is damaged: cases are no ids"
    if len(set(cases)) != len(cases):
        return "is damaged: cases are repeated"
    if not experiment.isprintable() or len(experiment) > 200:
        return "is damaged: the experiment has no name"
    return None


def of_table(results: pd.DataFrame) -> str | None:
    """What is wrong with the values of a table whose columns are right."""
    for name in TEXTS:
        texts = results[name].dropna().unique()
        if not all(isinstance(text, str) and len(text) <= MOST_TEXT and text.isprintable() for text in texts):
            return f"{name} holds control characters or is too long"
    if not results["status"].isin(STATUSES).all():
        return f"status is not one of {', '.join(STATUSES)}"
    if not results["dtype"].isin(list(DTYPES)).all():
        return f"dtype is not one of {', '.join(DTYPES)}"
    for name, least in (*((size, 1) for size in SIZES), ("seed", 0), ("rank", table.ALL_RANKS)):
        most = 2**63 - 1 if name == "seed" else MOST_SIZE
        if not results[name].between(least, most).all():
            return f"{name} is missing or below {least}"
    if fault := _of_numbers(results[results["tensor"].notna() & (results["status"] == table.OK)]):
        return fault
    return "rows are repeated" if results.duplicated(["case_id", "tensor", "rank"]).any() else None


def _of_numbers(numbers: pd.DataFrame) -> str | None:
    if not numbers["tensor"].isin(table.ALL_TENSORS).all():
        return f"tensor is not one of {', '.join(table.ALL_TENSORS)}"
    for name in (*NUMBERS, "single_device_max"):
        if not ((numbers[name] >= 0) | ((name not in REQUIRED) & numbers[name].isna())).all():
            return f"{name} is missing or below 0"
    for name in RATIOS.keys() & set(numbers):
        above, below = RATIOS[name]
        usual = numbers[np.isfinite(numbers[above]) & (numbers[below] > 0)]
        if not (usual[name] == usual[above] / usual[below]).all():
            return f"{name} is not {above} / {below}"
    return None
