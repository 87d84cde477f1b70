"""What did a run measure? Reads a run folder or a published one, as data only, and believes nothing unchecked.

A file that is damaged, too large, of a later schema, or made to do harm raises ConfigError in one line.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from accuracy.core import fields
from accuracy.core.dtype import DTYPES
from accuracy.core.errors import ConfigError, IncompleteRun, printable
from accuracy.results import completeness, storage, table
from accuracy.results.completeness import Fault
from accuracy.results.derived import RATIOS, SAID_LATER, with_derived

MOST_JSON_BYTES = 32 * 2**20
MOST_TABLE_BYTES = 512 * 2**20
MOST_ROWS = 5_000_000
MOST_SIZE = 2**40  # of a whole number that counts tokens, heads, ranks
MOST_TEXT = 2000  # letters of a text in a table; options and reasons are the longest
TEXTS = [field.name for field in table.RESULTS_SCHEMA if field.type == pa.string() and field.name != "code"]
_COUNTS = [each for each in fields.COLUMNS if each.type.startswith("int")]
SIZES = tuple(each.name for each in _COUNTS if each.role != fields.SEED)
NUMBERS = ("error_rel", "error_rms", "error_max", "single_device_rel", "floor_rel")
_EVERY = dict.fromkeys((*TEXTS, *fields.names(), "rank", "nonfinite", *NUMBERS))
REQUIRED = [name for name in _EVERY if name not in SAID_LATER]
ALLOWED = {"status": (table.OK, table.UNSUPPORTED, table.FAILED), "dtype": tuple(DTYPES)}
ENTRIES = {"experiment": str, "cases": list, "fingerprint": dict, "provenance": dict, "argv": list, "config": dict}


@dataclass(frozen=True)
class RunTable:
    """about: run.json; results: the planned cases' rows; faults: what is not as the run ended with it."""

    folder: Path
    about: dict[str, Any]
    results: pd.DataFrame
    faults: tuple[Fault, ...] = ()

    @property
    def experiment(self) -> str:
        """Its name, as run.json says."""
        return str(self.about["experiment"])

    @property
    def planned(self) -> list[str]:
        """Ids of the cases that the run set out to measure."""
        return list(self.about["cases"])


def read_run(folder: Path) -> RunTable:
    """A run under test, `results/` or published."""
    _must_be_a_folder(folder)
    if (folder / "results.parquet").exists():
        return _published(folder, signed=(folder / storage.SUMS).exists())
    about = _record(folder, _bytes(folder / "run.json", MOST_JSON_BYTES))
    return of_table(folder, about, _guarded(folder / "results", lambda: _dataset(folder / "results")))


def read_baseline(folder: Path) -> RunTable:
    """A published run; its files must be those that SHA256SUMS names."""
    _must_be_a_folder(folder)
    if (folder / "results").is_dir() and not (folder / "results.parquet").exists():
        raise ConfigError(f"{folder} is a run, not a baseline; make it one with accuracy accept")
    return _published(folder, signed=True)


def of_table(folder: Path, about: dict[str, Any], rows: pa.Table, signed: bool = False) -> RunTable:
    """Plain columns whose values make sense, of planned cases only.

    rows: of `table.RESULTS_SCHEMA`. signed: published with sums, which stand for the plan."""
    results = with_derived(_guarded(folder, rows.to_pandas))
    faults = () if signed else completeness.faults(about, results)
    planned = results["case_id"].isin(about["cases"])
    if signed and (not planned.all() or results["case_id"].nunique() != len(about["cases"])):
        raise ConfigError(f"{folder}: its table and its run.json name different cases; accept a run again")
    results = results[planned].reset_index(drop=True)
    if fault := _damage_of_table(results):
        if faults and faults[0].text != completeness.NO_PLAN:
            raise IncompleteRun(f"{folder}: {faults[0].name} {faults[0].text}; {fault}")
        raise ConfigError(f"{folder}: {fault}; its table is damaged")
    results = results.astype(dict.fromkeys((*SIZES, "seed", "rank"), "int64") | dict.fromkeys(SAID_LATER, "object"))
    return RunTable(folder, about, results.fillna({name: "" for name in TEXTS if name != "tensor"}), faults)


def _must_be_a_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give a run's output_dir or a published folder under reports/")


def _published(folder: Path, signed: bool) -> RunTable:
    limits = {"run.json": MOST_JSON_BYTES}
    contents = {
        name: _bytes(folder / name, limits.get(name, MOST_TABLE_BYTES)) for name in storage.signed_files(folder)
    }
    if signed and not _guarded(folder / storage.SUMS, lambda: storage.sums_hold(folder, contents)):
        raise ConfigError(
            f"{folder}/{storage.SUMS} does not fit its files: one is damaged or was changed by hand; "
            "restore them from version control, or accept a run again"
        )
    about, path = _record(folder, contents["run.json"]), folder / "results.parquet"
    return of_table(folder, about, _guarded(path, lambda: _parquet(contents["results.parquet"])), signed)


def _bytes(path: Path, most: int) -> bytes:
    try:
        size = path.stat().st_size
        if not path.is_file() and not path.is_dir():
            raise ConfigError(f"{path} is no file (a pipe or a device would be read for ever); give a finished run")
        if size > most:
            raise ConfigError(f"{path} has {size} bytes; allowed: {most}")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a finished run") from error


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    """read(), with whatever a damaged or hostile file provokes in a parser as one line."""
    try:
        return read()
    except Exception as error:
        why = printable(" ".join(str(error).split())[:160])
        raise ConfigError(f"{path} cannot be read ({type(error).__name__}: {why}); restore it") from error


def _dataset(path: Path) -> pa.Table:
    """All cases' files; none where the run ended before its first case."""
    files = sorted(each for each in path.glob("*.parquet") if not each.name.startswith((".", "_")))
    if sum(pq.read_metadata(each).num_rows for each in files) > MOST_ROWS:
        raise ValueError(f"more than {MOST_ROWS} rows")
    return table.read_cases(files, table.RESULTS_SCHEMA)


def _parquet(content: bytes) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(content))
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    if file.metadata.num_rows > MOST_ROWS or sum(group.total_byte_size for group in groups) > 4 * MOST_TABLE_BYTES:
        raise ValueError(f"more than {MOST_ROWS} rows")
    version = (file.schema_arrow.metadata or {}).get(b"schema_version", b"none").decode("ascii", "replace")
    if version != str(table.SCHEMA_VERSION):
        raise ValueError(f"schema version {version}, this reads {table.SCHEMA_VERSION}")
    if missing := sorted(set(REQUIRED) - set(file.schema_arrow.names)):
        raise ValueError(f"column {missing[0]} is missing")
    rows = table.read_published(pa.BufferReader(content), table.RESULTS_SCHEMA)
    rows.validate(full=True)
    return rows


def _record(folder: Path, content: bytes) -> dict[str, Any]:
    path = folder / "run.json"
    about = _guarded(path, lambda: json.loads(content.decode("utf-8")))
    if not isinstance(about, dict):
        raise ConfigError(f"{path} holds no object; give a run's folder")
    if fault := damage_of_record(about):
        raise ConfigError(f"{path} {fault}")
    return about


def damage_of_record(about: dict[str, Any]) -> str | None:
    """What cannot be in a run.json that `accuracy` wrote, as the rest of a sentence that its path begins; or None."""
    version = about.get("schema_version")
    if type(version) is not int or version != table.SCHEMA_VERSION:
        return (
            f"has schema version {printable(str(version)[:20])}; this reads {table.SCHEMA_VERSION}: "
            "use the accuracy that wrote it, or measure again"
        )
    for key, kind in ENTRIES.items():
        if not isinstance(about.get(key), kind):
            return f"has no {key}; it is damaged, or no run of this version"
    for name in ("code", "device"):
        if not isinstance(about["fingerprint"].get(name), str):
            return f"has no {name} in its fingerprint; it is damaged, or no run of this version"
    cases, experiment = about["cases"], about["experiment"]
    if not all(isinstance(case, str) and case.isprintable() and len(case) < 100 for case in cases):
        return "is damaged: cases are no ids"
    if len(set(cases)) != len(cases):
        return "is damaged: cases are repeated"
    if not experiment.isprintable() or len(experiment) > 200:
        return "is damaged: the experiment has no name"
    return None


def _damage_of_table(results: pd.DataFrame) -> str | None:
    """What cannot be in a table that `accuracy` wrote, whose columns are right; or None."""
    for name in TEXTS:
        texts = results[name].dropna().unique()
        if not all(isinstance(text, str) and len(text) <= MOST_TEXT and text.isprintable() for text in texts):
            return f"{name} holds control characters or is too long"
    measured = results[results["tensor"].notna() & (results["status"] == table.OK)]
    for rows, name, values in (
        *((results, *each) for each in ALLOWED.items()),
        (measured, "tensor", table.ALL_TENSORS),
    ):
        if not rows[name].isin(values).all():
            return f"{name} is not one of {', '.join(values)}"
    for name, least in (*((size, 1) for size in SIZES), ("seed", 0), ("rank", table.ALL_RANKS)):
        if not results[name].between(least, 2**63 - 1 if name == "seed" else MOST_SIZE).all():
            return f"{name} is missing or below {least}"
    for name in (*NUMBERS, "single_device_max"):
        if not ((measured[name] >= 0) | ((name not in REQUIRED) & measured[name].isna())).all():
            return f"{name} is missing or below 0"
    for name, (above, below) in RATIOS.items():
        if name in measured:
            exact = measured[np.isfinite(measured[above]) & (measured[below] > 0)]
            if not (exact[name] == exact[above] / exact[below]).all():
                return f"{name} is not {above} / {below}"
    return "rows are repeated" if results.duplicated(["case_id", "tensor", "rank"]).any() else None
