import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from accuracy.core.errors import ConfigError
from accuracy.core.paths import PACKAGE
from accuracy.report.explorer import published_positions
from accuracy.results import storage, table
from accuracy.results.cell import EXACT, measured
from accuracy.results.claim import over_ranks
from accuracy.results.derived import RATIOS, SUMMARIES, with_derived, without_derived
from accuracy.results.run_table import read_baseline
from tests.measuring import measure
from tests.unit.report.synthetic import Shape, write_run

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
    """So the run's command measures it again."""
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
KEYS = ["case_id", "tensor", "rank"]
SMALL = Shape(("single_device", "ring", "zigzag"), ("bfloat16", "float64"), (1, 2, 4), (0,))


@pytest.fixture
def full(tmp_path: Path) -> pd.DataFrame:
    """Of a run whose last rows have ratios of zeros, infinities, and one that no division gives."""
    results = table.read_results(write_run(tmp_path / "run", SMALL))
    results["single_device_bias"] = results["error_rms"] * np.random.default_rng(0).normal(size=len(results))
    awkward = results.index[results["tensor"].notna()][-4:]
    results.loc[awkward, "error_rel"] = [0.0, math.inf, 1.0, 1.0]
    results.loc[awkward, "floor_rel"] = [0.0, math.inf, 0.0, 3.0]
    results.loc[awkward, "x_floor"] = [1.0, 1.0, math.inf, 0.5]
    ratios = results["error_rel"] / results["single_device_rel"]
    return results.assign(x_single_device=results["x_single_device"].mask(results.index.isin(awkward), ratios))


def published(full: pd.DataFrame, folder: Path, every_digit: bool) -> pd.DataFrame:
    folder.mkdir()
    storage.write_table(storage.lean_results(full, every_digit), folder / "results.parquet")
    assert pq.read_schema(folder / "results.parquet").metadata[b"schema_version"] == b"3"
    return in_order(table.read_results(folder))


def in_order(results: pd.DataFrame) -> pd.DataFrame:
    return results.sort_values(KEYS, ignore_index=True)


def test_a_baseline_comes_back_in_every_digit_but_for_columns_that_nothing_reads_of_single_ranks(
    full: pd.DataFrame, tmp_path: Path
) -> None:
    read, whole = published(full, tmp_path / "out", True), in_order(full)
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


def test_rows_of_all_ranks_keep_every_digit_and_others_twelve_bits_whose_ratios_follow(
    full: pd.DataFrame, tmp_path: Path
) -> None:
    read, whole = published(full, tmp_path / "out", False), in_order(full)
    all_ranks = whole["rank"] == table.ALL_RANKS
    pd.testing.assert_frame_equal(read[all_ranks], whole[all_ranks], check_exact=True)
    rows = (whole["rank"] >= 0) & np.isfinite(whole["error_rel"]) & (whole["floor_rel"] > 0) & (whole["x_floor"] != 0.5)
    for name in set(table.METRICS) - {*RATIOS, *storage.UNREAD, "error_bias"}:
        exact, kept = whole.loc[rows, name].dropna().to_numpy(), read.loc[rows, name].dropna().to_numpy()
        assert (np.abs(kept - exact) <= np.abs(exact) * 2.0**-12).all()
        assert name in SUMMARIES or (np.frexp(kept)[0] * 2**13 % 1 == 0).all()
    assert (read.loc[rows, "x_floor"] == read.loc[rows, "error_rel"] / read.loc[rows, "floor_rel"]).all()


def test_a_page_draws_the_same_places_from_a_published_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", replace(SMALL, dtypes=("bfloat16",)))
    results, all_positions = table.read_results(run), table.read_side(run, "positions")
    kept = published_positions(results, all_positions)
    assert 0 < len(kept) < len(all_positions)
    assert {*SMALL.variants} == set(results[results["case_id"].isin(kept["case_id"])]["variant"])


@pytest.mark.stress(3)
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_every_published_table_is_read_with_all_of_its_columns_and_can_be_a_baseline(folder: Path) -> None:
    results = table.read_results(folder)
    assert list(results.columns) == table.RESULTS_SCHEMA.names
    assert set(results["case_id"]) == set(table.read_run(folder)["cases"])
    assert results["x_floor"].notna().sum() == results["error_rel"].notna().sum()
    assert measured(read_baseline(folder))


def test_the_worst_rank_or_the_mean_is_taken_in_each_seed_and_averaged_over_seeds() -> None:
    case = {"variant": "ring", "precision": "", "dtype": "bfloat16", "tensor": "out", "world_size": 2}
    rows = pd.DataFrame(
        {**case, "seed": seed, "rank": rank, "x_single_device": times}
        for seed, ranks in enumerate(((1.0, 1.2), (1.4, 1.0)))
        for rank, times in enumerate((99.0, *ranks), start=-1)  # the norm over all ranks together is no rank
    )
    found = over_ranks(rows, "max")
    assert found["x_single_device"].item() == pytest.approx(1.3)
    # t of one degree of freedom; s / sqrt(2) = 0.1
    assert found["half"].item() == pytest.approx(12.706 * 0.1, rel=1e-3)
    found = over_ranks(rows[rows["seed"] == 0], "mean")
    assert found["x_single_device"].item() == pytest.approx(1.1)
    assert found["half"].isna().item()
