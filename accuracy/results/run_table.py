"""What did a run measure? Reads a run folder or a published one, as data only, and believes nothing unchecked.

A file that is damaged, too large, of a later schema, or made to do harm raises ConfigError in one line.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from accuracy.core.errors import ConfigError, IncompleteRun, printable
from accuracy.results import completeness, damage, sums, table
from accuracy.results.completeness import Fault
from accuracy.results.damage import LATER, REQUIRED, SIZES, TEXTS
from accuracy.results.derived import with_derived

MOST_JSON_BYTES = 32 * 2**20
MOST_TABLE_BYTES = 512 * 2**20
MOST_ROWS = 5_000_000
COLUMNS = table.RESULTS_SCHEMA.names  # a published one has less: what is empty or follows from others is left out


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
        return _published(folder, signed=(folder / sums.NAME).exists())
    about = _record(folder, _bytes(folder / "run.json", MOST_JSON_BYTES))
    return _checked(folder, about, _guarded(folder / "results", lambda: _dataset(folder / "results")), False)


def read_baseline(folder: Path) -> RunTable:
    """A published run; its files must be those that SHA256SUMS names."""
    _must_be_a_folder(folder)
    if (folder / "results").is_dir() and not (folder / "results.parquet").exists():
        raise ConfigError(f"{folder} is a run, not a baseline; make it one with accuracy accept")
    return _published(folder, signed=True)


def of_table(folder: Path, about: dict[str, Any], rows: pa.Table) -> RunTable:
    """What was measured in this very process. rows: of `table.RESULTS_SCHEMA`."""
    return _checked(folder, about, rows, False)


def _must_be_a_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give a run's output_dir or a published folder under reports/")


def _published(folder: Path, signed: bool) -> RunTable:
    limits = {"run.json": MOST_JSON_BYTES}
    contents = {name: _bytes(folder / name, limits.get(name, MOST_TABLE_BYTES)) for name in sums.signed(folder)}
    if signed and not _guarded(folder / sums.NAME, lambda: sums.hold(folder, contents)):
        raise ConfigError(
            f"{folder}/{sums.NAME} does not fit its files: one is damaged or was changed by hand; "
            "restore them from version control, or publish again"
        )
    about, path = _record(folder, contents["run.json"]), folder / "results.parquet"
    return _checked(folder, about, _guarded(path, lambda: _parquet(contents["results.parquet"])), signed)


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
        raise ConfigError(f"{path} cannot be read ({type(error).__name__}: {why}); publish it again") from error


def _dataset(path: Path) -> pa.Table:
    """All cases' files; none where the run ended before its first case."""
    files = sorted(each for each in path.glob("*.parquet") if not each.name.startswith((".", "_")))
    if sum(pq.read_metadata(each).num_rows for each in files) > MOST_ROWS:
        raise ValueError(f"more than {MOST_ROWS} rows")
    return table.read_cases(files, table.RESULTS_SCHEMA)


def _parquet(content: bytes) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(content))
    groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
    if file.metadata.num_rows > MOST_ROWS or sum(group.total_byte_size for group in groups) > 4 * MOST_TABLE_BYTES:
        raise ValueError(f"more than {MOST_ROWS} rows")
    version = (file.schema_arrow.metadata or {}).get(b"schema_version", b"none").decode("ascii", "replace")
    if version != str(table.SCHEMA_VERSION):
        raise ValueError(f"schema version {version}, this reads {table.SCHEMA_VERSION}")
    present = [name for name in COLUMNS if name in file.schema_arrow.names]
    if missing := sorted(set(REQUIRED) - set(present)):
        raise ValueError(f"column {missing[0]} is missing")
    read = file.read(columns=present).select(present)
    read = read.cast(pa.schema([table.RESULTS_SCHEMA.field(name) for name in present]))
    read.validate(full=True)
    return read


def _record(folder: Path, content: bytes) -> dict[str, Any]:
    path = folder / "run.json"
    about = _guarded(path, lambda: json.loads(content.decode("utf-8")))
    if not isinstance(about, dict):
        raise ConfigError(f"{path} holds no object; give a run's folder")
    if fault := damage.of_record(about):
        raise ConfigError(f"{path} {fault}")
    return about


def _checked(folder: Path, about: dict[str, Any], read: pa.Table, signed: bool) -> RunTable:
    """Plain columns whose values make sense, of planned cases only; rows of stacks are for the report alone. signed: a
    baseline, which may be older than plans are."""
    results = with_derived(_guarded(folder, read.to_pandas).reindex(columns=COLUMNS))
    faults = () if signed and "plan" not in about else completeness.faults(about, results)
    if signed and faults:
        raise ConfigError(f"{folder}: {faults[0].name} {faults[0].text}; publish the baseline again")
    stacks = table.in_stacks(results)
    of_stacks = set(results.loc[stacks, "case_id"])
    about = {**about, "cases": [case for case in about["cases"] if case not in of_stacks]}
    results = results[~stacks]
    planned = results["case_id"].isin(about["cases"])
    if signed and (not planned.all() or results["case_id"].nunique() != len(about["cases"])):
        raise ConfigError(f"{folder}: its table and its run.json name different cases; publish it again")
    results = results[planned].reset_index(drop=True)
    if fault := damage.of_table(results):
        if faults and faults[0].text != completeness.NO_PLAN:
            raise IncompleteRun(f"{folder}: {faults[0].name} {faults[0].text}; {fault}")
        raise ConfigError(f"{folder}: {fault}; its table is damaged")
    results = results.astype(dict.fromkeys((*SIZES, "seed", "rank"), "int64") | dict.fromkeys(LATER, "object"))
    return RunTable(folder, about, results.fillna({name: "" for name in TEXTS if name != "tensor"}), faults)
