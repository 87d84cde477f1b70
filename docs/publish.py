"""A finished run as evidence: reports/EXPERIMENT/DEVICE/ with lean tables, run.json and the report.

Of single ranks a published table has no number that nothing reads, and the others in 12 significant bits, an error of
at most 2^-12 = 2.4e-4 of the number. Numbers that others follow from (`accuracy/results/derived.py`) have 13 bits, so
that their quotients and products have that error too; one that has not is written. Every number stays a float64, so
that none overflows: byte stream split and compression make the zeros of a rounded number's last bytes free.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from accuracy.cli.accept import finished, target_of, without_places
from accuracy.core.dtype import DTYPES
from accuracy.core.errors import ConfigError
from accuracy.core.paths import whole_folder
from accuracy.report import build
from accuracy.report.explorer import MOST_LEGIBLE_WORLD
from accuracy.report.series import SINGLE_DEVICE, with_labels
from accuracy.results import storage, table
from accuracy.results.derived import SUMMARIES, summaries

SIGNIFICANT_BITS = 12
MOST_SETTINGS = 2  # whose positions are kept
UNREAD = (*storage.UNREAD, "error_bias")
_ROUNDED = {*table.METRICS, *table.LOSSES, *table.METRICS_OF_PAIRS, "error_rms", "error_max"}
_SUMMARISED = {name for names in SUMMARIES.values() for name in names}
_UNDRAWN = ("error_max", "drift_rms", "drift_max", "drift_differ")


def publish(folder: Path, to: Path, name: str = "") -> Path:
    """Copy a run's tables and run.json, make its report; the folder, which replaces the one before as a whole.

    name: of the folder in `to`/EXPERIMENT, else the device's. Raises ConfigError for a run that is not finished, or
    that other code measured.
    """
    from accuracy.measurement.provenance import code_digest  # imports torch

    about, rows = finished(folder)
    code, target = about["fingerprint"]["code"], target_of(about, to)
    if code != code_digest():
        raise ConfigError(f"{folder} was measured by other code ({code}); publish from its checkout")
    target = target.with_name(name or target.name)
    with whole_folder(target) as new:
        storage.write_table(storage.lean_results(rows, lean), new / "results.parquet")
        for side in ("boundaries", "places"):  # that only some runs have
            if len(found := table.read_side(folder, side)):
                content = pa.Table.from_pandas(found, table.SIDE_TABLES[side], preserve_index=False)
                storage.write_table(content, new / f"{side}.parquet")
        storage.write_json(new / "run.json", without_places(about))
        write_positions(new, rows, table.read_side(folder, "positions"))
        build.write_report(new)
    return target


def write_positions(target: Path, rows: pd.DataFrame, positions: pd.DataFrame) -> None:
    """Beside the tables in `target` those errors along the sequence that a page draws, rounded, if there are some; and
    the sums of all."""
    if len(kept := drawn(rows, positions)):
        full = pa.Table.from_pandas(kept, table.POSITIONS_SCHEMA, preserve_index=False)
        full = full.drop_columns([name for name in full.column_names if name in _UNDRAWN])
        storage.write_table(_rounded(full), target / storage.POSITIONS)
    storage.write_sums(target)


def drawn(results: pd.DataFrame, positions: pd.DataFrame) -> pd.DataFrame:
    """The errors along the sequence of the run's coarsest settings, where chunks are legible."""
    measured = results[(results["status"] == table.OK) & results["tensor"].notna()]
    shown: list[str] = []
    for facet in _facets(with_labels(results).loc[measured.index])[:MOST_SETTINGS]:
        rows = facet[facet["case_id"].isin(positions["case_id"])]
        size = _chosen_world(rows["world_size"].unique().tolist()) if len(rows) else None
        shown += [*rows.loc[(rows["world_size"] == size) | (rows["variant"] == SINGLE_DEVICE), "case_id"]]
    return positions[positions["case_id"].isin(shown)]


def _facets(labelled: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each facet, coarsest dtype first."""
    found = [(str(rows["dtype"].iloc[0]), str(label), rows) for label, rows in labelled.groupby("facet")]
    found.sort(key=lambda each: (-DTYPES[each[0]].unit_roundoff, *each[:2]))
    return [rows for *_, rows in found]


def _chosen_world(sizes: Sequence[int]) -> int:
    """The largest world size whose chunks can still be told apart, else the smallest that has chunks at all."""
    legible = [size for size in sizes if 1 < size <= MOST_LEGIBLE_WORLD]
    return int(max(legible) if legible else min([size for size in sizes if size > 1] or sizes))


def rounded(values: np.ndarray, bits: int = SIGNIFICANT_BITS) -> np.ndarray:
    """Float64 values to so many significant bits, to the nearest, ties to even; what would overflow stays as it is."""
    mantissa, exponent = np.frexp(values)
    with np.errstate(over="ignore"):
        result = np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)
    return np.where(np.isfinite(result), result, values)


def lean(single: pa.Table) -> pa.Table:
    """Rows of single ranks, rounded, without the numbers that follow from others and those that nothing reads."""
    rows = _rounded(single, finer=_SUMMARISED)
    for name, found in summaries(rows.to_pandas()).items():
        exact = single[name].to_numpy()
        written = np.abs(found - exact) > np.abs(exact) * 2.0**-SIGNIFICANT_BITS
        rows = storage.with_column(rows, name, np.where(written | found.isna(), rows[name].to_numpy(), np.nan))
    return storage.without_numbers(rows, UNREAD)


def _rounded(rows: pa.Table, finer: Collection[str] = ()) -> pa.Table:
    for name in _ROUNDED & {*rows.column_names}:
        bits = SIGNIFICANT_BITS + (name in finer)
        rows = storage.with_column(rows, name, rounded(rows[name].to_numpy().astype("float64"), bits))
    return rows
