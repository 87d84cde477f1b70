"""The table: one row per (case, tensor, rank), parquet on disk, written so that a kill loses at most one case.

A run folder holds `results/` (metrics, one file a case), `positions/` (error along the sequence, one file a case)
and `run.json`. Each case's file is written beside its place under a hidden name and renamed into it, so a reader
never sees half a file, and `pandas.read_parquet(folder / "results")` reads all of them as one table at any moment.
No torch here: the report and the gate read tables only.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from accuracy.core import fields
from accuracy.core.files import whole_file
from accuracy.results.derived import with_derived

SCHEMA_VERSION = 3
"""The only one that is read."""

TENSORS = ("out", "lse", "dq", "dk", "dv", "delta")
TENSORS_OF_STACKS = ("x", "dx", "d_query", "d_key", "d_value", "d_output", "loss", "gradient_norm")
ALL_RANKS = -1

OK, UNSUPPORTED, FAILED = "ok", "unsupported", "failed"

_IDENTITY = [
    ("case_id", pa.string()),
    ("experiment", pa.string()),
    *((each.name, pa.type_for_alias(each.type)) for each in fields.COLUMNS),
    ("code", pa.string()),  # digest of the sources that measured the row, parts of one's own after a +
    ("reference", pa.string()),  # which reference: fused or torch; null where nothing was measured
    ("tensor", pa.string()),  # null where the case has no numbers (unsupported, failed)
    ("rank", pa.int32()),  # -1: all ranks together
    ("layer", pa.int32()),  # of a stack: 1 to L; the loss and the norm of all gradients have L; null: no stack
    ("status", pa.string()),
    ("reason", pa.string()),
]
IDENTITY = tuple(name for name, _ in _IDENTITY)

METRICS = (
    "error_max",
    "error_mean",
    "error_rms",
    "error_rel",
    "error_bias",
    "error_bias_t",
    "error_outward",  # mean of error x sign(reference): above 0, away from zero
    "diff_max",
    "diff_mean",
    "diff_rms",
    "diff_rel",
    "single_device_rel",
    "single_device_max",
    "single_device_bias",
    "single_device_outward",
    "floor_mean",
    "floor_rel",
    "x_floor",
    "x_single_device",
    "ulp_max",
    "reference_rms",
    "condition_softmax",  # these three: see condition.py; null: not asked for
    "condition_sum",
    "condition_rounding",
)
METRICS_OF_STACKS = (  # of these, error_rel, single_device_rel, x_single_device and diff_rel, all others are null
    "exact_rel",  # error_rel of the stack with exact attention: what is rounded outside of attention
    "x_exact",  # error_rel over exact_rel
    "exact_diff_rel",  # diff_rel of the stack with exact attention: two stacks that are both right differ by so much
    "cosine",  # of the angle between stack and reference; 1: same direction
    "value",  # the norm, and of loss and gradient_norm the number itself
    "reference_value",
)
RERUN_COUNTS = ("repeats_differ", "poisoned", "future_differs")  # elements; null: not asked for
_COUNTS = (
    "significand_bits",  # the fewest in which all values are exact: 8 is bfloat16, 11 float16, 24 float32
    *RERUN_COUNTS,
    "nonfinite",
    "worst_batch",
    "worst_token",
    "worst_head",
    "worst_dim",
)  # worst_dim -1: has no head_dim
RESULTS_SCHEMA = pa.schema(
    _IDENTITY
    + [(name, pa.float64()) for name in (*METRICS, *METRICS_OF_STACKS)]
    + [(name, pa.int64()) for name in _COUNTS]
    + [("seconds", pa.float64()), ("peak_bytes", pa.int64())],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
POSITIONS_SCHEMA = pa.schema(
    [
        ("case_id", pa.string()),
        ("tensor", pa.string()),
        ("token_begin", pa.int64()),  # global token positions [begin, end)
        ("token_end", pa.int64()),
        ("rank", pa.int32()),  # owner of every token of the bin; -1 where several ranks share it
        ("error_rms", pa.float32()),
        ("error_max", pa.float32()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)

STEPS_SCHEMA = pa.schema(
    [
        ("case_id", pa.string()),
        ("way", pa.string()),  # forward, backward
        ("rank", pa.int32()),
        ("step", pa.int32()),  # number of the rank's kernel call
        ("tensor", pa.string()),
        ("source", pa.int32()),  # the rank that owns the block's keys; -1: several
        ("state", pa.string()),  # partial: what the kernel gave for the block; running: what has been joined so far
        ("query_begin", pa.int64()),  # global tokens of the block's first and last query and key; -1: not known
        ("query_last", pa.int64()),
        ("key_begin", pa.int64()),
        ("key_last", pa.int64()),
        ("error_rel", pa.float64()),
        ("error_max", pa.float64()),
        ("band", pa.float64()),  # the error_rel that rounding alone stays below
        ("nonfinite", pa.int64()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)

Row = Mapping[str, Any]
Columns = Mapping[str, Sequence[Any]]
"""Many rows, column by column."""


def write_case(
    folder: Path,
    case_id: str,
    results: Columns | Sequence[Row],
    positions: Columns | None = None,
    steps: Sequence[Row] = (),
) -> None:
    """Store a finished case for good; results last, so a case that has results has its positions and steps too."""
    if positions:
        write_rows(folder / "positions" / f"{case_id}.parquet", positions, POSITIONS_SCHEMA)
    if steps:
        write_rows(folder / "steps" / f"{case_id}.parquet", steps, STEPS_SCHEMA)
    write_rows(folder / "results" / f"{case_id}.parquet", results, RESULTS_SCHEMA)


def write_rows(path: Path, rows: Columns | Sequence[Row], schema: pa.Schema) -> None:
    """Write a file of a table whole or not at all; columns that are not given are null."""
    if isinstance(rows, Mapping):
        count = len(next(iter(rows.values())))
        table = pa.Table.from_pydict({name: rows.get(name, [None] * count) for name in schema.names}, schema)
    else:
        table = pa.Table.from_pylist([dict(row) for row in rows], schema)
    file = pa.BufferOutputStream()
    pq.write_table(table, file, compression="snappy", use_dictionary=False, write_statistics=False)  # a few rows
    _store(path, file.getvalue())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    _store(path, (json.dumps(content, indent=1, sort_keys=True, default=str) + "\n").encode())


def _store(path: Path, content: bytes | pa.Buffer) -> None:
    with whole_file(path) as handle:
        handle.write(content)


def read_results(folder: Path) -> pd.DataFrame:
    """Every row of a run folder (`results/`) or of a published one (`results.parquet`), derived columns rebuilt."""
    return with_derived(_read(folder, "results", RESULTS_SCHEMA))


OF_STACKS = ("layer", *fields.names(fields.STACK), *METRICS_OF_STACKS)
"""Columns that are empty in the rows of attention alone."""


def in_stacks(results: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows are of attention inside a stack; all others are of attention alone."""
    return results["layers"].notna()


def read_positions(folder: Path) -> pd.DataFrame:
    """Error along the sequence, of a run folder or of a published one."""
    return _read(folder, "positions", POSITIONS_SCHEMA)


def read_steps(folder: Path) -> pd.DataFrame:
    """Every ring step of the traced cases, of a run folder or of a published one."""
    return _read(folder, "steps", STEPS_SCHEMA)


def _read(folder: Path, name: str, schema: pa.Schema) -> pd.DataFrame:
    for path in (folder / name, folder / f"{name}.parquet"):
        if path.exists():
            return ds.dataset(path, format="parquet", schema=schema).to_table().to_pandas()
    return schema.empty_table().to_pandas()


def read_run(folder: Path) -> dict[str, Any]:
    """`run.json`: resolved configuration, command, provenance, start and end."""
    return json.loads((folder / "run.json").read_text())


@dataclass(frozen=True)
class Finished:
    """How a case in the folder ended, and the digest of the code that ended it."""

    status: str
    code: str


def finished_cases(folder: Path) -> dict[str, Finished]:
    """By id, the cases that need no second run: measured or unsupported. A failed case is tried again."""
    found = {path.stem: finished_case(folder, path.stem) for path in (folder / "results").glob("*.parquet")}
    return {case_id: each for case_id, each in found.items() if each is not None}


def finished_case(folder: Path, case_id: str) -> Finished | None:
    """How a case ended that needs no second run; None where it does."""
    path = folder / "results" / f"{case_id}.parquet"
    if not path.exists():
        return None
    first = pq.read_table(path, columns=["status", "code"]).slice(0, 1).to_pylist()[0]
    return None if first["status"] == FAILED else Finished(**first)
