import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from accuracy.core.errors import ConfigError
from accuracy.core.paths import PACKAGE
from accuracy.results import storage, table
from accuracy.results.cell import EXACT, measured
from accuracy.results.derived import with_derived, without_derived
from accuracy.results.run_table import read_baseline
from tests.measuring import measure
from tests.unit.report.synthetic import awkward_rows, in_order

STABLE_COLUMNS = {
    "case_id", "experiment", "variant", "kernel", "inputs", "dtype", "world", "world_size", "seed", "mask", "batch",
    "seqlen", "heads", "heads_kv", "head_dim", "tensor", "rank", "status", "reason", "error_max", "error_mean",
    "error_rms", "error_rel", "error_bias", "diff_max", "diff_mean", "diff_rms", "diff_rel", "floor_rel", "x_floor",
    "x_single_device", "ulp_max", "nonfinite", "worst_token", "worst_head", "worst_dim", "seconds", "peak_bytes",
}  # fmt: skip


def row(case_id: str, status: str = table.OK, **columns: Any) -> dict[str, Any]:
    usual = {"reason": "", "code": "c0de", "rank": -1, "softcap": 0.0, "against": "", "sums": ""}
    return {"case_id": case_id, "status": status, **usual, **columns}


def test_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = [0.1, math.inf, 5e-324, -0.0, 2.0**-1074, 1e308]
    rows = [row("a", tensor="dq", error_max=value, seed=2**62, nonfinite=3) for value in values]
    positions = [{"case_id": "a", "tensor": "dq", "token_begin": 0, "token_end": 4, "rank": 1, "error_rms": 0.5}]
    storage.write_case(tmp_path, "a", rows, {"positions": positions})
    read = table.read_results(tmp_path)
    assert list(read.columns) == table.RESULTS_SCHEMA.names
    assert {*read.columns} >= STABLE_COLUMNS
    metadata = pq.read_schema(tmp_path / "results" / "a.parquet").metadata
    assert metadata[b"schema_version"] == str(table.SCHEMA_VERSION).encode()
    assert [value.hex() for value in read["error_max"]] == [value.hex() for value in values]
    assert set(read["seed"]) == {2**62}
    assert table.read_side(tmp_path, "positions")[list(positions[0])].to_dict("records") == positions


def test_pandas_reads_a_run_folder_as_one_table_with_its_unsupported_and_failed_rows(tmp_path: Path) -> None:
    """The unsupported one first: its empty columns must not decide the types of the others'."""
    storage.write_case(tmp_path, "a", [row("a", table.UNSUPPORTED, reason="too many ranks")])
    storage.write_case(tmp_path, "b", [row("b", tensor=name, error_max=0.5) for name in table.TENSORS])
    storage.write_case(tmp_path, "c", [row("c", table.FAILED, reason="rank 1: ValueError: no")])
    results = pd.read_parquet(tmp_path / "results")
    assert results.groupby("case_id").size().to_dict() == {"a": 1, "b": len(table.TENSORS), "c": 1}
    assert results["error_max"].dtype == "float64"
    assert results.set_index("case_id")["reason"]["a"] == "too many ranks"
    pd.testing.assert_frame_equal(results, table.read_results(tmp_path))


def test_what_is_measured_fills_every_column(tmp_path: Path) -> None:
    reruns = ["repeat=1", "poison=true", "unwaited=true", "future=true", "explain=true"]
    words = [*(f"reruns.{word}" for word in reruns), "conditions=true"]
    rows = measure("variant=ring", "world_size=2", "dtype=float32", *words)
    others = {"drift_differ", *table.LOSSES, *table.METRICS_OF_PAIRS}
    assert set(rows.columns) == set(table.RESULTS_SCHEMA.names) - others
    filled = rows.drop(columns="peak_bytes")  # may be unknown
    assert filled.drop(columns=["beyond", *table.RERUN_COUNTS]).notna().all().all()
    assert filled[filled["tensor"] == "out"].notna().all().all()  # delta has no bound; of dk and dv not all is asked
    storage.write_case(tmp_path, "a", rows.astype(object).where(rows.notna(), None).to_dict("records"))
    pd.testing.assert_frame_equal(
        table.read_results(tmp_path)[list(rows.columns)], rows, check_dtype=False, check_exact=True
    )


def finished(folder: Path) -> dict[str, storage.Finished]:
    return storage.finished_cases(storage.read_files(folder))


def test_what_an_interrupted_write_left_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.write_case(tmp_path, "a", [row("a")], {"positions": {"case_id": ["a"]}})
    for folder in ("results", "positions"):
        (tmp_path / folder / ".b.parquet.4711").write_bytes(b"PAR1 and half of a file")
    for read in (pd.read_parquet(tmp_path / "results"), table.read_results(tmp_path)):
        assert list(read["case_id"]) == ["a"]
    assert list(table.read_side(tmp_path, "positions")["case_id"]) == ["a"]
    assert set(finished(tmp_path)) == {"a"}
    replace = os.replace

    def killed_at_results(source: Path, target: Path) -> None:
        if "results" in str(target):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed_at_results)
    with pytest.raises(KeyboardInterrupt):
        storage.write_case(tmp_path, "c", [row("c")], {"positions": {"case_id": ["c"]}})
    assert set(finished(tmp_path)) == {"a"}
    assert len(table.read_results(tmp_path)) == 1
    assert len(table.read_side(tmp_path, "positions")) == 2  # positions come first: results never lack theirs


def flipped(path: Path, other: Path) -> None:
    """In a page of numbers, which has a checksum; of headers and the footer not every byte is guarded."""
    column = pq.read_metadata(path).row_group(0).column(table.RESULTS_SCHEMA.get_field_index("error_rel"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 16
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "cut off": lambda path, other: path.write_bytes(path.read_bytes()[:900]),
    "no rows": lambda path, other: pq.write_table(table.RESULTS_SCHEMA.empty_table(), path),
    "no status": lambda path, other: pd.read_parquet(path).assign(status=None).to_parquet(path),
    "no code": lambda path, other: pd.read_parquet(path).assign(code=None).to_parquet(path),
    "another case's": lambda path, other: shutil.copy(other, path),
    "a bit flipped": flipped,
}


def test_a_damaged_file_is_no_finished_case_and_is_told(tmp_path: Path) -> None:
    """A damaged case file counts as not finished, so that the run's command measures its case again."""
    for case_id in ("a", "b"):
        storage.write_case(tmp_path, case_id, [row(case_id, error_rel=1 / place) for place in range(3, 9)])
    path, other = sorted((tmp_path / "results").iterdir())
    whole = path.read_bytes()
    for name, damage in DAMAGES.items():
        damage(path, other)
        assert set(finished(tmp_path)) == {"b"}, name
        path.write_bytes(whole)
    DAMAGES["cut off"](path, other)
    with pytest.raises(ConfigError, match=r"has a damaged file \(.*\); repeat the run's command, which measures such"):
        table.read_results(tmp_path)


def test_failed_cases_are_tried_again_and_others_are_not(tmp_path: Path) -> None:
    for case_id, status in (("a", table.OK), ("b", table.UNSUPPORTED), ("c", table.FAILED)):
        storage.write_case(tmp_path, case_id, [row(case_id, status)])
    expected = {name: storage.Finished(status, "c0de") for name, status in (("a", table.OK), ("b", table.UNSUPPORTED))}
    assert finished(tmp_path) == expected
    storage.write_case(tmp_path, "c", [row("c", table.OK)])
    assert list(table.read_results(tmp_path)["status"]) == [table.OK, table.UNSUPPORTED, table.OK]  # replaced


def test_a_folder_without_rows_is_an_empty_table_and_a_published_one_reads_the_same(tmp_path: Path) -> None:
    assert list(table.read_results(tmp_path).columns) == table.RESULTS_SCHEMA.names
    assert finished(tmp_path) == {}
    storage.write_case(tmp_path / "run", "a", [row("a", error_max=0.1)])
    results = table.read_results(tmp_path / "run")
    (tmp_path / "published").mkdir()
    for lacking in ([], list(table.LOSSES)):  # as an earlier version published
        results.drop(columns=lacking).to_parquet(tmp_path / "published" / "results.parquet")
        pd.testing.assert_frame_equal(table.read_results(tmp_path / "published"), results)


PUBLISHED = sorted(path.parent for path in (PACKAGE.parent / "reports").glob("*/*/results.parquet"))


def test_a_baseline_comes_back_in_every_digit_but_for_columns_that_nothing_reads_of_single_ranks(
    tmp_path: Path,
) -> None:
    full = awkward_rows(tmp_path / "run")
    storage.write_table(storage.lean_results(full), tmp_path / "results.parquet")
    assert pq.read_schema(tmp_path / "results.parquet").metadata[b"schema_version"] == b"3"
    read, whole = in_order(table.read_results(tmp_path)), in_order(full)
    left_out = (*storage.UNREAD, *storage.UNREAD_OF_BASELINE)
    unread = [name for name in left_out if name in full and whole[name].notna().any()]
    kept = whole.assign(**{name: whole[name].mask(whole["rank"] >= 0) for name in unread})
    kept["error_bias_t"] = read["error_bias_t"]  # follows from others
    assert {"worst_dim", "error_bias_t"} <= {*unread}
    assert not {*unread} & {*EXACT}
    pd.testing.assert_frame_equal(read, kept, check_exact=True)
    left = without_derived(full)  # unless reading gives others
    assert left["x_single_device"].isna().all()
    assert left["x_floor"].notna().sum() == 1
    pd.testing.assert_frame_equal(with_derived(left), full, check_exact=True)


@pytest.mark.stress(3)
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_every_published_table_is_read_with_all_of_its_columns_and_can_be_a_baseline(folder: Path) -> None:
    results = table.read_results(folder)
    assert list(results.columns) == table.RESULTS_SCHEMA.names
    assert set(results["case_id"]) == set(table.read_run(folder)["cases"])
    assert results["x_floor"].notna().sum() == results["error_rel"].notna().sum()
    assert measured(read_baseline(folder))
