"""Tables on disk: the cases of a run, each written whole or not at all, and published tables, written in few bytes.

A kill loses at most the case at hand. A published table leaves out empty columns, numbers that reading rebuilds
(`derived.py`) and, of single ranks, those that nothing reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from accuracy.core import fields
from accuracy.core.paths import whole_file
from accuracy.results import table
from accuracy.results.derived import without_derived
from accuracy.results.table import OK, RESULTS_SCHEMA, SIDE_TABLES, UNSUPPORTED, Columns, Row

if TYPE_CHECKING:
    import pandas as pd

Rows = Columns | Sequence[Row]


def write_case(folder: Path, case_id: str, results: Rows, side: Mapping[str, Rows] | None = None) -> None:
    """Store a finished case for good. Results come last, so a case that has results has all else too.

    side: rows of further tables, by name. One that SIDE_TABLES lacks is of a user's observer: it becomes
    `answers/NAME/CASE.parquet`, its columns and their types taken from the rows.
    """
    for name, rows in (side or {}).items():
        if rows and name in SIDE_TABLES:
            write_rows(folder / name / f"{case_id}.parquet", rows, SIDE_TABLES[name])
        elif rows:
            write_rows(folder / "answers" / name / f"{case_id}.parquet", rows)
    write_rows(folder / "results" / f"{case_id}.parquet", results, RESULTS_SCHEMA)


def write_traceback(folder: Path, case_id: str, text: str, rank: int | None = None) -> None:
    """Store what a case raised, of a rank's process under the rank's number too."""
    name = case_id if rank is None else f"{case_id}-rank{rank}"
    with whole_file(folder / table.TRACEBACKS / f"{name}.txt") as file:
        file.write(text.encode(errors="backslashreplace"))


def write_rows(path: Path, rows: Rows, schema: pa.Schema | None = None) -> None:
    """Write a table as one file, whole or not at all; columns that are not given are null."""
    if schema is None:
        content = pa.Table.from_pydict(dict(rows)) if isinstance(rows, Mapping) else pa.Table.from_pylist([*rows])
    elif isinstance(rows, Mapping):
        count = len(next(iter(rows.values())))
        content = pa.Table.from_pydict({name: rows.get(name, [None] * count) for name in schema.names}, schema)
    else:
        content = pa.Table.from_pylist([dict(row) for row in rows], schema)
    with whole_file(path) as handle:  # of a few rows
        pq.write_table(
            content,
            handle,
            compression="snappy",
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    with whole_file(path) as handle:
        handle.write((json.dumps(content, indent=1, sort_keys=True, default=str) + "\n").encode())


class Finished(NamedTuple):
    """How a case in the folder ended, and the digest of the code that ended it."""

    status: str
    code: str


class CaseFile(NamedTuple):
    """A case's rows. ended: None where it runs again, as it failed or as its file is not as a run writes it."""

    rows: pa.Table
    ended: Finished | None


def read_files(folder: Path) -> dict[str, CaseFile]:
    """By id, the files of the folder's cases, planned or not, each read once; without those that cannot be read."""
    found = {path.stem: _read_file(path) for path in sorted((folder / "results").glob("*.parquet")) if path.is_file()}
    return {case_id: each for case_id, each in found.items() if each is not None}


def finished_cases(files: Mapping[str, CaseFile]) -> dict[str, Finished]:
    """By id, the cases that need no second run: measured or unsupported. A failed case is tried again."""
    return {case_id: each.ended for case_id, each in files.items() if each.ended}


def is_of(file: CaseFile, identity: Mapping[str, Any]) -> bool:
    """Whether every row has these columns of its case, but for the device's model; an id alone may be anyone's."""
    identity = {name: value for name, value in identity.items() if name != fields.DEVICE}
    columns = [pc.fill_null(pc.equal(file.rows[name], pa.scalar(value, file.rows.schema.field(name).type)), False)
               for name, value in identity.items() if value is not None]  # fmt: skip
    empty = all(file.rows[name].null_count == len(file.rows) for name, value in identity.items() if value is None)
    return empty and all(pc.all(each).as_py() for each in columns)


def finished_case(folder: Path, case_id: str) -> Finished | None:
    """How a case ended that needs no second run; None where it does, or where its file is damaged."""
    file = _read_file(folder / "results" / f"{case_id}.parquet")
    return file.ended if file else None


def read_more(folder: Path, rows: dict[str, pa.Table], wanted: Collection[str]) -> None:
    """Add, by id, the rows of those wanted cases that have ended since and that no run writes again."""
    for path in (folder / "results").glob("*.parquet"):
        if path.stem in wanted and path.stem not in rows and (file := _read_file(path)) and file.ended:
            rows[path.stem] = file.rows


def _read_file(path: Path) -> CaseFile | None:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            group = file.metadata.row_group(0)
            intact = file.schema_arrow.equals(RESULTS_SCHEMA) and all(
                group.column(index).num_values == file.metadata.num_rows for index in range(group.num_columns)
            )
            content = file.read(use_threads=False)
    except (OSError, ValueError, pa.ArrowException):
        return None
    rows = content.select(["case_id", "status", "code"]).to_pylist() if intact else []
    own = rows and all(row["case_id"] == path.stem and row["code"] for row in rows)
    ended = own and {row["status"] for row in rows} <= {OK, UNSUPPORTED}
    return CaseFile(content, Finished(rows[0]["status"], rows[0]["code"]) if ended else None)


_SAME_NUMBERS = (  # rows that share a reference lie next to each other: their equal numbers compress to nothing
    "kernel", "kernel_options", "tensor", "inputs", "inputs_options", "dtype", "mask", "batch", "seqlen", "heads",
    "heads_kv", "head_dim", "seed", "world_size", "sharding", "rank",
)  # fmt: skip
UNREAD = (  # of single ranks no page, rule of the verdict or of the gate, or experiment reads these
    "error_bias_t", "error_outward", "single_device_bias", "single_device_outward", "single_device_max", "floor_mean",
    "worst_batch", "worst_head", "worst_dim", "ulp_max",
)  # fmt: skip
UNREAD_OF_BASELINE = ("error_gain_se", "error_mean", "diff_mean", "diff_max")  # the gate reads no more of single ranks


def without_numbers(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """The rows with these columns empty, where they have them."""
    for name in {*names} & {*rows.column_names}:
        rows = with_column(rows, name, np.full(len(rows), np.nan))
    return rows


def read_by_the_gate(single: pa.Table) -> pa.Table:
    """Rows of single ranks with what a baseline needs of them."""
    return without_numbers(single, (*UNREAD, *UNREAD_OF_BASELINE))


def lean_results(full: pd.DataFrame, lean: Callable[[pa.Table], pa.Table] = read_by_the_gate) -> pa.Table:
    """The rows of all ranks with all columns, then those of single ranks as `lean` leaves them."""
    content = pa.Table.from_pandas(without_derived(full), RESULTS_SCHEMA, preserve_index=False)
    content = content.drop_columns([name for name in content.column_names if content[name].null_count == len(content)])
    content = content.sort_by([(name, "ascending") for name in _SAME_NUMBERS if name in content.column_names])
    each_rank = pc.fill_null(pc.greater_equal(content["rank"], 0), False)
    parts = [content.filter(pc.invert(each_rank)), lean(content.filter(each_rank))]
    return pa.concat_tables(parts).replace_schema_metadata(RESULTS_SCHEMA.metadata)  # which sorting forgets


def write_table(content: pa.Table, path: Path) -> None:
    """Write a published table as one parquet file."""
    numbers = [field.name for field in content.schema if pa.types.is_floating(field.type)]
    split = [*numbers, *({"worst_token"} & {*content.column_names})]  # too many different tokens for a dictionary
    others = [name for name in content.column_names if name not in split]
    options: dict[str, Any] = {"use_dictionary": others, "use_byte_stream_split": split, "write_statistics": False}
    pq.write_table(content, path, compression="zstd", compression_level=19, write_page_checksum=True, **options)


def with_column(rows: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    """The table with these values, NaN where there is none, in one of its columns."""
    index = rows.schema.get_field_index(name)
    field = rows.schema.field(index)
    return rows.set_column(index, field, pa.array(values, from_pandas=True).cast(field.type))


SUMS = "SHA256SUMS"
SIGNED = ("results.parquet", "run.json")  # what the gate reads
POSITIONS = "positions.parquet"  # what the report draws


def signed_files(folder: Path) -> list[str]:
    """The names of the published folder's files that have a line in SHA256SUMS, as `sha256sum` writes and checks it.

    The sums guard against damage, not against malice: who can write a baseline can write its sums. A new baseline is
    reviewed like code.
    """
    return [*SIGNED, *([POSITIONS] if (folder / POSITIONS).exists() else [])]


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS for the folder's tables."""
    contents = {name: (folder / name).read_bytes() for name in signed_files(folder)}
    (folder / SUMS).write_text(_sums(contents), encoding="ascii")


def sums_hold(folder: Path, contents: Mapping[str, bytes]) -> bool:
    """Whether the contents are those that the folder's SHA256SUMS names, and nothing else stands in it."""
    return (folder / SUMS).read_bytes() == _sums(contents).encode()


def is_damaged(folder: Path) -> bool:
    """Return whether a published folder's files are not those that its SHA256SUMS names."""
    signed = (folder / SUMS).exists()
    return signed and not sums_hold(folder, {name: (folder / name).read_bytes() for name in signed_files(folder)})


def _sums(contents: Mapping[str, bytes]) -> str:
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items())
