"""`accuracy.load`, `summary`, `columns` and `compare`: a run's table, its one number a tensor, what its columns
mean, and two runs cell by cell."""

from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.core.errors import ConfigError, entry
from accuracy.gate import judge
from accuracy.results import glossary
from accuracy.results import table as tables
from accuracy.results.cell import KEYS, measured
from accuracy.results.run_table import RunTable, read_run

Table = pd.DataFrame | str | Path


@entry()
def load(folder: str | Path) -> pd.DataFrame:
    """Return the table of a run folder or of a published one, one row per case, tensor and rank. Raises ConfigError, a
    ValueError, in one line for a folder that is missing, damaged or of a later version."""
    return read_run(path_of("folder", folder)).results


def path_of(name: str, given: object) -> Path:
    """Return an argument as a path. Raises ConfigError."""
    if not isinstance(given, str | Path) or not str(given).strip():
        raise ConfigError(f"{name}={given!r} is no folder; give its path as text or as a pathlib.Path")
    return Path(given)


def _rows(given: Table) -> pd.DataFrame:
    if not isinstance(given, pd.DataFrame | str | Path):
        raise ConfigError(f"{type(given).__name__} is no table; give accuracy.measure's, or the folder of a run")
    return given if isinstance(given, pd.DataFrame) else load(given)


@entry()
def summary(rows: Table) -> pd.DataFrame:
    """Return one number for each tensor: how many times single device's error a variant has.

    rows: a table of `accuracy.measure`, or the folder of a run. Each row of the result is a dtype, a variant and a
    world size, each column a tensor: the error of all ranks together over that of the same kernel run once on one
    device, relative Frobenius norms, the largest over seeds and problems. `attrs["title"]` says so; of a table of
    single device alone the numbers are over the rounding floor. Raises ConfigError, a ValueError, for what is no table.
    """
    table = _rows(rows)
    tables.require(table, tables.OF_SUMMARY)
    title, found = tables.summary(table)
    found.attrs["title"] = title
    return found


def columns() -> pd.DataFrame:
    """Return what each column of the table is: its `unit` ("" for names; "tensor's": as the tensor itself) and its
    `meaning`, by name."""
    rows = [{"column": name, "unit": each.unit, "meaning": each.meaning} for name, each in glossary.COLUMNS.items()]
    return pd.DataFrame(rows).set_index("column")


@entry()
def compare(a: Table, b: Table) -> pd.DataFrame:
    """Compare b with a, one row for each setting and tensor that both have.

    a, b: tables of `accuracy.measure`, or folders of runs. A setting in which each of them has one value is compared
    across, as the variant of two functions: `attrs["across"]` of the result names it with both values. Cells are joined
    in all other settings, seeds are pooled.

    Columns: the settings and the tensor; `error_a`, `error_b`, relative errors, geometric means over the seeds; `ratio`
    of b over a, of errors over the single-device kernel's on the same inputs; `p`, the chance of such a ratio where
    nothing differs (NaN: too few seeds to tell; Student's t, paired where the seeds are the same); `label`: identical
    (to the last bit), same, changed, improved (b is better), regression (b is worse), undecided, outlier; `reason`.
    Raises ConfigError, a ValueError, where nothing is in both.
    """
    left, right = map(_rows, (a, b))
    if left.empty or right.empty:
        raise ConfigError("a table has no rows; give what accuracy.measure or accuracy.load returns")
    across = _across(left, right)
    right = right.assign(**{name: old for name, (old, _) in across.items()})
    before, after = (measured(RunTable(Path(), {}, rows)) for rows in (left, right))
    found = judge.first_look(after, before, measures=judge.ERROR_ALONE)
    if not found:
        raise ConfigError("the tables share no measured cell; compare runs that agree in all settings but one")
    rows = [
        dict(zip(KEYS, key, strict=True)) | {
            "error_a": before[key].error, "error_b": after[key].error, "ratio": after[key].ratio / before[key].ratio,
            "p": each.p, "label": each.label,
            "reason": each.reason.replace("the baseline's", "the first's").replace("the baseline", "the first"),
        }
        for key, each in found.items()
    ]  # fmt: skip
    table = pd.DataFrame(rows).drop(columns=list(across))
    table.attrs["across"] = across
    return table


def _across(left: pd.DataFrame, right: pd.DataFrame) -> dict[str, tuple[Any, Any]]:
    names = [name for name in KEYS if name != "tensor" and left[name].nunique() == right[name].nunique() == 1]
    values = {name: (left[name].dropna().iloc[0], right[name].dropna().iloc[0]) for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}
