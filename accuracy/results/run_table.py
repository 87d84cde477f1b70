"""What did a run measure? Reads a run folder or a published one, as data only.

A file that is damaged, incomplete or of a later schema raises ConfigError in one line. What else was changed in a
table, the digests in the plan (`completeness`) and in SHA256SUMS tell.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from accuracy.core import fields
from accuracy.core.errors import ConfigError, IncompleteRun, printable
from accuracy.results import completeness, storage, table
from accuracy.results.completeness import Fault
from accuracy.results.derived import SAID_LATER, with_derived

TEXTS = [field.name for field in table.RESULTS_SCHEMA if field.type == pa.string() and field.name != "code"]
_COUNTS = [each for each in fields.COLUMNS if each.type.startswith("int")]
SIZES = tuple(each.name for each in _COUNTS if each.role != fields.SEED)
NUMBERS = ("error_rel", "error_rms", "error_max", "single_device_rel", "floor_rel")
_EVERY = dict.fromkeys((*TEXTS, *fields.names(), "rank", "nonfinite", *NUMBERS))
REQUIRED = [name for name in _EVERY if name not in SAID_LATER]
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
    about = _record(folder, _bytes(folder / "run.json"))
    return of_table(folder, about, _guarded(folder / "results", lambda: _dataset(folder / "results")))


def read_baseline(folder: Path) -> RunTable:
    """A published run; its files must be those that SHA256SUMS names."""
    _must_be_a_folder(folder)
    if (folder / "results").is_dir() and not (folder / "results.parquet").exists():
        raise ConfigError(f"{folder} is a run, not a baseline; make it one with accuracy accept")
    return _published(folder, signed=True)


def of_table(folder: Path, about: dict[str, Any], rows: pa.Table, signed: bool = False) -> RunTable:
    """Plain columns, of planned cases only.

    rows: of `table.RESULTS_SCHEMA`. signed: published with sums, which stand for the plan."""
    results = with_derived(_guarded(folder, rows.to_pandas))
    faults = () if signed else completeness.faults(about, results)
    planned = results["case_id"].isin(about["cases"])
    if signed and (not planned.all() or results["case_id"].nunique() != len(about["cases"])):
        raise ConfigError(f"{folder}: its table and its run.json name different cases; accept a run again")
    results = results[planned].reset_index(drop=True)
    measured = results["tensor"].notna() & (results["status"] == table.OK)
    if results.loc[measured, [name for name in NUMBERS if name in REQUIRED]].isna().any(axis=None):
        raise ConfigError(f"{folder}: numbers are missing; its table is damaged")
    types = dict.fromkeys((*SIZES, "seed", "rank"), "int64") | dict.fromkeys(SAID_LATER, "object")
    results = _guarded(folder, lambda: results.astype(types))
    return RunTable(folder, about, results.fillna({name: "" for name in TEXTS if name != "tensor"}), faults)


@contextmanager
def named_faults(*runs: RunTable | None) -> Iterator[None]:
    """Judge runs in the body. A table that is not as its run ended with it may hold what cannot be judged: that raises
    IncompleteRun, which names it."""
    try:
        yield
    except (ConfigError, OSError):
        raise
    except Exception as error:
        for run in filter(None, runs):
            for fault in run.faults:
                raise IncompleteRun(f"{run.folder}: {fault.name} {fault.text}") from error
            if not run.about.get("ended"):
                raise IncompleteRun(f"{run.folder} is not finished, and its table is damaged") from error
        raise


def _must_be_a_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; give a run's output_dir or a published folder under reports/")


def _published(folder: Path, signed: bool) -> RunTable:
    contents = {name: _bytes(folder / name) for name in storage.signed_files(folder)}
    if signed and not _guarded(folder / storage.SUMS, lambda: storage.sums_hold(folder, contents)):
        raise ConfigError(
            f"{folder}/{storage.SUMS} does not fit its files: one is damaged or was changed by hand; "
            "restore them from version control, or accept a run again"
        )
    about, path = _record(folder, contents["run.json"]), folder / "results.parquet"
    return of_table(folder, about, _guarded(path, lambda: _parquet(contents["results.parquet"])), signed)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a finished run") from error


def _guarded(path: Path, read: Callable[[], Any]) -> Any:
    """read(), with whatever a damaged file provokes in a parser as one line."""
    try:
        return read()
    except Exception as error:
        why = printable(" ".join(str(error).split())[:160])
        raise ConfigError(f"{path} cannot be read ({type(error).__name__}: {why}); restore it") from error


def _dataset(path: Path) -> pa.Table:
    """All cases' files; none where the run ended before its first case."""
    files = sorted(each for each in path.glob("*.parquet") if not each.name.startswith((".", "_")))
    return table.read_cases(files, table.RESULTS_SCHEMA)


def _parquet(content: bytes) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(content))
    version = (file.schema_arrow.metadata or {}).get(b"schema_version", b"none").decode("ascii", "replace")
    if version != str(table.SCHEMA_VERSION):
        raise ValueError(f"schema version {version}, this reads {table.SCHEMA_VERSION}")
    if missing := sorted(set(REQUIRED) - set(file.schema_arrow.names)):
        raise ValueError(f"column {missing[0]} is missing")
    return table.read_published(pa.BufferReader(content), table.RESULTS_SCHEMA)


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
    if not all(isinstance(case, str) and case.isprintable() for case in about["cases"]):
        return "is damaged: cases are no ids"
    if not about["experiment"].isprintable():
        return "is damaged: the experiment has no name"
    return None
