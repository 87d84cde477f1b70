"""The table: one row per (case, tensor, rank), its schema, and reading it. `storage` writes.

A run folder holds `results/` (metrics, one file a case), `positions/` (error along the sequence, one file a case) and
`run.json`. Each case's file is written beside its place under a hidden name and renamed into it, so a reader never sees
half a file, and `pandas.read_parquet(folder / "results")` reads all of them as one table at any moment. No torch here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from accuracy.core import fields
from accuracy.core.dtype import PROBES, REFERENCE_ERROR
from accuracy.core.errors import ConfigError, printable
from accuracy.results import glossary
from accuracy.results.derived import with_derived

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 3
"""Tables of other versions are rejected."""

TENSORS = ("out", "lse", "dq", "dk", "dv", "delta")
ALL_TENSORS = (*TENSORS[:-1], "dsink", "dbias", TENSORS[-1])
"""dsink: of problems with sinks only, one value a head, the same on all ranks; dbias: of one rank, where a bias
wants a gradient, in its shape, queries before heads."""
OF_ALL = ("dsink", "dbias")
ALL_RANKS = -1

TRACEBACKS = "tracebacks"
OK, UNSUPPORTED, FAILED = "ok", "unsupported", "failed"
NOT_TAKEN = "not taken: "
"""How the reason of a case begins that a user's function refused when it was asked what it takes."""
TOO_FEW_RANKS = "world=processes has "
"""How the reason of a case begins that more ranks would measure than there are here."""

IDENTITY = ("case_id", "experiment", *fields.names(), "code", "tensor", "rank", "status", "reason")
_TYPES = {each.name: each.type for each in fields.COLUMNS} | {"rank": "int32"}
METRICS = tuple(glossary.METRICS)
LOSSES = tuple(glossary.LOSSES)  # of inputs of 8 bits
METRICS_OF_PAIRS = tuple(glossary.METRICS_OF_PAIRS)
RERUN_COUNTS = ("repeats_differ", "repeats_runs", "repeats_size", "poisoned", "unwaited", "future_differs")


def _schema(*columns: tuple[str, str]) -> pa.Schema:
    """columns: a type, as pyarrow names it, and the names of columns of it that follow each other."""
    named = [(name, pa.type_for_alias(alias)) for alias, names in columns for name in names.split()]
    return pa.schema(named, metadata={"schema_version": str(SCHEMA_VERSION)})


RESULTS_SCHEMA = _schema(
    *((_TYPES.get(name, "string"), name) for name in IDENTITY),
    ("float64", " ".join((*METRICS, *LOSSES, *METRICS_OF_PAIRS))),
    ("int64", " ".join(glossary.COUNTS)),
    ("float64", "seconds"),
    ("int64", "peak_bytes"),
)
POSITIONS_SCHEMA = _schema(
    ("string", "case_id tensor"),
    ("int64", "token_begin token_end"),  # global token positions [begin, end)
    ("int32", "rank"),  # owner of every token of the bin; -1 where several ranks share it
    ("float32", "error_rms error_max"),
    ("float32", "drift_rms drift_max"),  # of the difference from the path that the case is compared with
    ("int64", "drift_differ"),  # elements whose bits differ
)
STEPS_SCHEMA = _schema(
    ("string", "case_id way"),  # way: forward, backward
    ("int32", "rank step"),  # step: number of the rank's kernel call
    ("string", "tensor"),
    ("int32", "source"),  # the rank that owns the block's keys; -1: several
    ("int64", "query_begin query_last key_begin key_last"),  # global tokens
    ("float64", "error_rel error_max band"),  # band: the error_rel that rounding alone stays below
    ("int64", "nonfinite"),
    # finding: null: a step of explain/trace.py. Of explain/one_hot.py: left out, counted again, shown: pairs of queries
    # and keys in a returned tensor
    ("string", "finding"),
    ("int64", "count"),  # pairs
)
HYPOTHESES_SCHEMA = _schema(
    ("string", "case_id tensor"),
    ("string", "family hypothesis"),  # FAMILIES of explain/hypothesis; the idea, the same whatever its parameter
    ("string", "cause parameter"),  # cause: a clause that says it
    ("int64", "freedom"),  # how many numbers were fitted to the tensor
    ("float64", "residual"),  # ||x - prediction|| / ||reference||
    ("float64", "expected"),  # the residual that rounding explains
    ("float64", "from_best"),  # ||prediction - the best hypothesis' prediction|| / ||reference||
    ("int64", "tried"),  # hypotheses on the tensor; the best of them have rows
)
FOLLOWS = "gradients of the returned out and lse"
"""The hypothesis that a gradient is right for the wrong out and lse that it is made of."""
SUM, SCALED = "cast of the softmax's sum", "cast of the scaled q"
"""The hypotheses that out and lse are those of a sum over keys that is kept in 16 bits, or of a rounded scaled q."""
EXPLAINS = 1.5
"""A hypothesis explains a tensor that it leaves at most so many times the expected rounding of."""
RULED_OUT = 10.0
"""A hypothesis is ruled out where it leaves at least so many times the expected rounding."""
SAME = 3.0
"""Predictions that are no further apart, in times the expected rounding, are one."""
BOUNDARIES_SCHEMA = _schema(
    ("string", "case_id axis"),  # what was varied: batchmates, order, length, queries, chunk, pages, splits
    ("int64", "first last"),  # of the values between which a boundary was looked for
    ("int64", "runs"),  # values that were run
    ("int64", "before value"),  # the first value with other bits and the one below it; null: no probe found one
    ("string", "tensor"),
    ("int64", "elements"),  # that are compared
    ("int64", "drift_differ"),  # the columns of two paths, `value`'s the first and `before`'s the other
    ("float64", "error_rel drift_ulp drift_max drift_rel drift_row_token drift_error_rel drift_nearer"),
    ("string", "reason"),  # why nothing was varied
)
PLACES_SCHEMA = _schema(
    ("string", "case_id tensor"),
    ("float64", "drift_rel"),
    ("string", "place"),  # schedule, kernel, options.KNOB, kernel.KNOB, forward.PLACE, backward.PLACE
    ("string", "of_a of_b"),  # what the case has there, and the path that it is compared with
    ("float64", "share"),  # Shapley's, of the squared difference
    ("float64", "alone"),  # by how much the squared difference falls where this place alone is switched
    ("float64", "left"),  # of the squared difference, with all places switched
    ("string", "shortest"),  # fewest places after whose switch no bit differs; null: not even all of them
    ("bool", "verified"),  # by another run
    ("int64", "sets"),  # combinations that were run
    ("string", "reason"),  # why none was
)
SIDE_TABLES = {
    "positions": POSITIONS_SCHEMA, "steps": STEPS_SCHEMA, "hypotheses": HYPOTHESES_SCHEMA,
    "boundaries": BOUNDARIES_SCHEMA, "places": PLACES_SCHEMA,
}  # fmt: skip
"""What a case may have beside its results, in the order of `storage.write_case`."""
DATASETS = ("results", *SIDE_TABLES)
Row = Mapping[str, Any]
Columns = Mapping[str, Sequence[Any]]
"""Many rows, column by column."""


def require(rows: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raise ConfigError where a caller's table lacks one of these columns."""
    if missing := {*columns} - {*rows.columns}:
        raise ConfigError(
            f"the table has no column {min(missing)}; give what accuracy.measure or accuracy.load returns"
        )


def read_results(folder: Path) -> pd.DataFrame:
    """Every row of a run folder (`results/`) or of a published one (`results.parquet`), derived columns rebuilt."""
    return with_derived(_read(folder, "results", RESULTS_SCHEMA))


def read_side(folder: Path, name: str) -> pd.DataFrame:
    """One of SIDE_TABLES, `positions`, of a run folder or of a published one; no rows where there is none."""
    return _read(folder, name, SIDE_TABLES[name])


def results_of(folder: Path, cases: Sequence[str], others: Sequence[pa.Table]) -> pd.DataFrame:
    """Rows of some cases of a run folder, read now, and of others that were read before, derived columns rebuilt."""
    files = [folder / "results" / f"{case_id}.parquet" for case_id in cases]
    rows = pa.concat_tables([*others, _guarded(files, folder / "results", RESULTS_SCHEMA)]).to_pandas()
    return with_derived(rows.sort_values("case_id", kind="stable", ignore_index=True))  # in the order of the files


def _read(folder: Path, name: str, schema: pa.Schema) -> pd.DataFrame:
    files = case_files(folder, name) if (folder / name).is_dir() else [folder / f"{name}.parquet"]
    return _guarded(files, folder / name, schema).to_pandas()


def _guarded(files: Sequence[Path], dataset: Path, schema: pa.Schema) -> pa.Table:
    """dataset: the folder of the files, or a published table without its suffix."""
    there = [path for path in files if path.exists()]
    try:
        if dataset.is_dir() or not there:
            return read_cases(there, schema)
        return read_published(there[0], schema)
    except (OSError, ValueError, pa.ArrowException) as error:
        why = printable(" ".join(str(error).split())[:160])
        advice = "repeat the run's command, which measures such cases again"
        raise ConfigError(f"{dataset} has a damaged file ({why}); {advice}") from error


def read_published(source: Path | pa.BufferReader, schema: pa.Schema) -> pa.Table:
    """A published table, of this version or an earlier one: columns that it lacks are empty, others are left out."""
    file = pq.ParquetFile(source, page_checksum_verification=True)
    present = [name for name in schema.names if name in file.schema_arrow.names]
    rows = file.read(columns=present).select(present).cast(pa.schema([schema.field(name) for name in present]))
    return pa.concat_tables([schema.empty_table(), rows], promote_options="default").combine_chunks()


def read_cases(files: Sequence[Path], schema: pa.Schema) -> pa.Table:
    """Many small files, read side by side, as one piece in their order; a column that a file lacks is empty in it.
    Raises ValueError for a file with a column of another name or type: no checksum guards those."""
    types = dict(zip(schema.names, schema.types, strict=True))

    def read(path: Path) -> pa.Table:
        found = pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False)
        for field in () if found.schema.equals(schema) else found.schema:
            if types.get(field.name) != field.type:
                raise ValueError(f"{path.name} has a column {field.name!r} of {field.type}")
        return found

    with ThreadPoolExecutor(3) as readers:  # more threads wait for each other: half of it is Python
        parts = [schema.empty_table(), *readers.map(read, files)]
    return pa.concat_tables(parts, promote_options="default").combine_chunks()


def case_files(folder: Path, name: str = "results") -> list[Path]:
    """The files of a run folder's planned cases; of all cases where no run.json says what was planned."""
    files = sorted(path for path in (folder / name).glob("*.parquet") if path.is_file())
    try:
        planned = set(map(str, read_run(folder)["cases"]))
    except ConfigError:
        return files
    return [path for path in files if path.stem in planned]


def read_run(folder: Path) -> dict[str, Any]:
    """`run.json`: resolved configuration, command, provenance, start and end."""
    path = folder / "run.json"
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        about = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); restore it, or choose another output_dir") from error
    kinds = {"fingerprint": dict, "provenance": dict, "config": dict, "cases": list}
    for key, kind in kinds.items():
        if not isinstance(about, dict) or not isinstance(about.get(key), kind):
            raise ConfigError(f"{path} is damaged (it has no {key}); restore it, or choose another output_dir")
    return about


OF_SUMMARY = (
    "rank", "tensor", "inputs", "variant", "kernel", "dtype", "world_size", "error_rel", "floor_rel", "x_floor",
    "x_single_device",
)  # fmt: skip
"""Columns that `summary` reads."""


def summary(results: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return what the numbers are, and a row for each dtype, variant and world size with a column for each tensor:
    error over single device's, of all ranks, the largest over seeds and problems; of a table of single device alone the
    error over the rounding floor. Inputs with an exact answer count where there are no others, as single device's
    error may happen to be 0."""
    rows = results[(results["rank"] == ALL_RANKS) & results["tensor"].notna()]
    probing = rows["inputs"].isin(list(PROBES))
    rows = rows if probing.all() else rows[~probing]
    if len(rows) and (rows["variant"] == "single_device").all():
        title = "error / floor (relative Frobenius, worst seed and problem)"
        index, value = ["dtype", "kernel"], "x_floor"
    else:
        title = "error / single device's error (relative Frobenius, all ranks, worst seed)"
        index, value = ["dtype", "variant", "world_size"], "x_single_device"
        exact = np.isinf(rows[value]) & np.isfinite(rows["error_rel"])  # single device has no error
        least = rows["error_rel"] / rows["floor_rel"].clip(lower=REFERENCE_ERROR)
        rows = rows.assign(**{value: rows[value].mask(exact, least)})
        title += "\nwhere that is 0: over the rounding floor, or the reference's own error" if exact.any() else ""
    found = rows.pivot_table(index=index, columns="tensor", values=value, aggfunc="max")
    title += "\ndelta: the row sums of dout times out" if "delta" in found else ""
    return title, found[[name for name in ALL_TENSORS if name in found]]
