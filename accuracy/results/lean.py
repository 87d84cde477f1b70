"""How is a table published in few bytes? In: a run's full table. Out: one parquet file that `table.read_results` reads.

Left out are empty columns and numbers that reading rebuilds (`derived.py`). Rows of all ranks keep every digit; the
numbers of single ranks are rounded to 12 significant bits, an error of at most 2^-12 = 2.4e-4 of the number. Numbers
that others follow from have 13 bits, so that their quotients and products have that error too; one that has not is
written. A table that the gate compares with is not rounded. Every number stays a float64, so that none overflows: byte
stream split and compression make the zeros of a rounded number's last bytes free.
"""

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from accuracy.results import table
from accuracy.results.derived import SUMMARIES, summaries, without_derived

SIGNIFICANT_BITS = 12
_ROUNDED = {*table.METRICS, *table.LOSSES, *table.METRICS_OF_PAIRS, "error_rms", "error_max"}
_SAME_NUMBERS = (  # rows that share a reference lie next to each other: their equal numbers compress to nothing
    "kernel", "kernel_options", "tensor", "inputs", "inputs_options", "dtype", "mask", "batch", "seqlen", "heads",
    "heads_kv", "head_dim", "seed", "world_size", "sharding", "rank",
)  # fmt: skip


_SUMMARISED = {name for given in SUMMARIES.values() for name in given}
_UNDRAWN = ("error_max", "drift_rms", "drift_max", "drift_differ")


def lean_results(full: pd.DataFrame, every_digit: bool = False) -> pa.Table:
    """The rows of all ranks, then those of single ranks, rounded unless every digit is asked for."""
    kept = pa.Table.from_pandas(without_derived(full), table.RESULTS_SCHEMA, preserve_index=False)
    kept = kept.drop_columns([name for name in kept.column_names if kept[name].null_count == len(kept)])
    kept = kept.sort_by([(name, "ascending") for name in _SAME_NUMBERS if name in kept.column_names])
    each_rank = pc.fill_null(pc.greater_equal(kept["rank"], 0), False)
    single = kept.filter(each_rank)
    content = pa.concat_tables([kept.filter(pc.invert(each_rank)), single if every_digit else _summarised(single)])
    return content.replace_schema_metadata(table.RESULTS_SCHEMA.metadata)  # which sorting forgets


def lean_positions(drawn: pd.DataFrame) -> pa.Table:
    """Error along the sequence, rounded, without what no page draws. drawn: what
    `report.section.positions.drawn` gives."""
    full = pa.Table.from_pandas(drawn, table.POSITIONS_SCHEMA, preserve_index=False)
    return _rounded(full.drop_columns([name for name in full.column_names if name in _UNDRAWN]))


def write(content: pa.Table, path: Path) -> None:
    """Write a table, lean or full, as one parquet file."""
    numbers = [field.name for field in content.schema if pa.types.is_floating(field.type)]
    others = [name for name in content.column_names if name not in numbers]
    options: dict[str, Any] = {"use_dictionary": others, "use_byte_stream_split": numbers, "write_statistics": False}
    options["write_page_checksum"] = True
    pq.write_table(content, path, compression="zstd", compression_level=19, **options)


def digest(full: pd.DataFrame) -> dict[str, Any]:
    """What tells later whether a full table is the one that was published: its rows, and the SHA-256 of the table as
    CSV with its rows ordered by case, tensor and rank."""
    order = [(name, "ascending") for name in ("case_id", "tensor", "rank", "layer") if name in full]
    text = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.Table.from_pandas(full, table.RESULTS_SCHEMA, preserve_index=False).sort_by(order), text)
    return {"rows": len(full), "csv_sha256": hashlib.sha256(text.getvalue()).hexdigest()}


def rounded(values: np.ndarray, bits: int = SIGNIFICANT_BITS) -> np.ndarray:
    """Float64 values to so many significant bits, to the nearest, ties to even; what would overflow stays as it is."""
    mantissa, exponent = np.frexp(values)
    with np.errstate(over="ignore"):
        result = np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)
    return np.where(np.isfinite(result), result, values)


def _summarised(full: pa.Table) -> pa.Table:
    rows = _rounded(full, finer=_SUMMARISED)
    for name, found in summaries(rows.to_pandas()).items():
        given = full[name].to_numpy()
        written = np.abs(found - given) > np.abs(given) * 2.0**-SIGNIFICANT_BITS
        rows = _with_column(rows, name, np.where(written | found.isna(), rows[name].to_numpy(), np.nan))
    return rows


def _rounded(rows: pa.Table, finer: Collection[str] = ()) -> pa.Table:
    for name in _ROUNDED & {*rows.column_names}:
        bits = SIGNIFICANT_BITS + (name in finer)
        rows = _with_column(rows, name, rounded(rows[name].to_numpy().astype("float64"), bits))
    return rows


def _with_column(rows: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    place = rows.schema.get_field_index(name)
    field = rows.schema.field(place)
    return rows.set_column(place, field, pa.array(values, from_pandas=True).cast(field.type))
