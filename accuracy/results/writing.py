"""Write a case, whole or not at all: a kill loses at most the case at hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from accuracy.core.paths import whole_file
from accuracy.results.table import RESULTS_SCHEMA, SIDE_TABLES, TRACEBACKS, Columns, Row

Rows = Columns | Sequence[Row]


def write_case(folder: Path, case_id: str, results: Rows, *side: Rows | None) -> None:
    """Store a finished case for good; side: of each of SIDE_TABLES, as far as given. Results last, so a case that has
    results has all else too."""
    for (name, schema), rows in zip(SIDE_TABLES.items(), side, strict=False):
        if rows:
            write_rows(folder / name / f"{case_id}.parquet", rows, schema)
    write_rows(folder / "results" / f"{case_id}.parquet", results, RESULTS_SCHEMA)


def write_traceback(folder: Path, case_id: str, text: str, rank: int | None = None) -> None:
    """Store what a case raised, of a rank's process under the rank's number too."""
    name = case_id if rank is None else f"{case_id}-rank{rank}"
    with whole_file(folder / TRACEBACKS / f"{name}.txt") as file:
        file.write(text.encode())


def write_rows(path: Path, rows: Columns | Sequence[Row], schema: pa.Schema) -> None:
    """A table as one file, whole or not at all; columns that are not given are null."""
    if isinstance(rows, Mapping):
        count = len(next(iter(rows.values())))
        table = pa.Table.from_pydict({name: rows.get(name, [None] * count) for name in schema.names}, schema)
    else:
        table = pa.Table.from_pylist([dict(row) for row in rows], schema)
    with whole_file(path) as handle:  # of a few rows
        pq.write_table(
            table, handle, compression="snappy", use_dictionary=False, write_statistics=False, write_page_checksum=True
        )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    with whole_file(path) as handle:
        handle.write((json.dumps(content, indent=1, sort_keys=True, default=str) + "\n").encode())
