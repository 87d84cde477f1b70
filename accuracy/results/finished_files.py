"""Which cases of a run folder need no second run, and what do their files hold?"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from accuracy.results.table import OK, RESULTS_SCHEMA, UNSUPPORTED


@dataclass(frozen=True)
class Finished:
    """How a case in the folder ended, and the digest of the code that ended it."""

    status: str
    code: str


class CaseFile(NamedTuple):
    """What a case's file holds; whole: as a run writes it, nothing lost."""

    rows: pa.Table
    whole: bool


def read_files(folder: Path) -> dict[str, CaseFile]:
    """By id, the files of the folder's cases, planned or not, each read once; without those that cannot be read."""
    found = {path.stem: _read_file(path) for path in sorted((folder / "results").glob("*.parquet")) if path.is_file()}
    return {case_id: each for case_id, each in found.items() if each is not None}


def _read_file(path: Path) -> CaseFile | None:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            counted = file.metadata.row_group(0)
            whole = file.schema_arrow.equals(RESULTS_SCHEMA) and all(
                counted.column(place).num_values == file.metadata.num_rows for place in range(counted.num_columns)
            )
            return CaseFile(file.read(use_threads=False), whole)
    except (OSError, ValueError, pa.ArrowException):
        return None


def finished_cases(files: Mapping[str, CaseFile]) -> dict[str, Finished]:
    """By id, the cases that need no second run: measured or unsupported. A failed case is tried again."""
    found = {case_id: _finished(case_id, file) for case_id, file in files.items()}
    return {case_id: each for case_id, each in found.items() if each is not None}


def read_more(folder: Path, rows: dict[str, pa.Table], wanted: Collection[str]) -> None:
    """Add, by id, the rows of those wanted cases that have ended since and that no run writes again."""
    for path in (folder / "results").glob("*.parquet"):
        if path.stem in wanted and path.stem not in rows:
            file = _read_file(path)
            if file is not None and _finished(path.stem, file) is not None:
                rows[path.stem] = file.rows


def finished_case(folder: Path, case_id: str) -> Finished | None:
    """How a case ended that needs no second run; None where it does, or where its file is damaged."""
    file = _read_file(folder / "results" / f"{case_id}.parquet")
    return None if file is None else _finished(case_id, file)


def _finished(case_id: str, file: CaseFile) -> Finished | None:
    if not file.whole:
        return None
    rows = file.rows.select(["case_id", "status", "code"]).to_pylist()
    whole = rows and all(row["case_id"] == case_id and row["code"] for row in rows)
    ended = {row["status"] for row in rows}
    return Finished(rows[0]["status"], rows[0]["code"]) if whole and ended <= {OK, UNSUPPORTED} else None
