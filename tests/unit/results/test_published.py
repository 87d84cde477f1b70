from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from accuracy.core.paths import PACKAGE
from accuracy.report.explorer import published_positions
from accuracy.results import storage, table
from accuracy.results.cell import EXACT, measured
from accuracy.results.claim import over_ranks
from accuracy.results.derived import RATIOS, SUMMARIES, with_derived, without_derived
from accuracy.results.run_table import read_baseline
from tests.unit.report.synthetic import Shape, write_run

INFINITE = float("inf")
PUBLISHED = sorted(path.parent for path in (PACKAGE.parent / "reports").glob("*/*/results.parquet"))
KEYS = ["case_id", "tensor", "rank"]
SMALL = Shape(("single_device", "ring", "zigzag"), ("bfloat16", "float64"), (1, 2, 4), (0,))


@pytest.fixture
def full(tmp_path: Path) -> pd.DataFrame:
    """Of a run whose last rows have ratios of zeros, infinities, and one that no division gives."""
    results = table.read_results(write_run(tmp_path / "run", SMALL))
    results["single_device_bias"] = results["error_rms"] * np.random.default_rng(0).normal(size=len(results))
    awkward = results.index[results["tensor"].notna()][-4:]
    results.loc[awkward, "error_rel"] = [0.0, INFINITE, 1.0, 1.0]
    results.loc[awkward, "floor_rel"] = [0.0, INFINITE, 0.0, 3.0]
    results.loc[awkward, "x_floor"] = [1.0, 1.0, INFINITE, 0.5]
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
