import math

import pandas as pd
import pytest

from accuracy.report.explorer import encode_rows
from accuracy.report.folder import read_folder
from accuracy.report.series import with_labels
from tests.unit.report.page_check import decoded
from tests.unit.report.synthetic import Shape, write_large_run

BUDGET = 100_000
ODD = [0.0, -0.0, 1.0, 2.5, -3.25e-9, 1.234567e-300, 5e-324, 1.7e308, 0.99999996, math.inf, -math.inf, math.nan]
WHOLE = [0, 1, -1, 127, -128, 65536, 2**31 - 1, None, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """4,000 rows, each labelled; not to be changed."""
    folder = write_large_run(tmp_path_factory.mktemp("large"), Shape(), 4_000)
    return with_labels(read_folder(folder).results)


def test_what_does_not_fit_is_left_out_and_said_rows_of_single_ranks_and_late_seeds_first(large: pd.DataFrame) -> None:
    block = encode_rows(large, BUDGET)
    assert len(block.encoded) <= BUDGET
    assert block.rows < len(large)
    assert f"{len(large) - block.rows:,} were left out" in block.note
    kept = decoded(block.encoded)
    assert kept["rank"].count(-1) == (large["rank"] == -1).sum()
    single = [seed for seed, rank in zip(kept["seed"], kept["rank"], strict=True) if rank != -1]
    assert single.count(0) >= single.count(1) >= single.count(2)


@pytest.mark.parametrize(("budget", "dtype", "digits"), [(10**8, "Int64", 6), (BUDGET, "float64", 3)])
def test_every_size_of_number_survives(budget: int, dtype: str, digits: int, large: pd.DataFrame) -> None:
    """With six digits and, with a smaller budget, with three; whole numbers, which may arrive as floats, exactly."""
    first = large.sort_values("rank", kind="stable", ignore_index=True)
    rows = first.assign(error_bias=first["error_bias"].where(first.index >= len(ODD)))
    rows.loc[: len(ODD) - 1, "error_bias"] = ODD
    rows["worst_token"] = rows["worst_token"].astype(dtype)
    rows.loc[: len(WHOLE) - 1, "worst_token"] = pd.array(WHOLE, dtype="Int64").astype(dtype)
    block = encode_rows(rows, budget)
    assert f"rounded to {digits} " in block.note
    kept = decoded(block.encoded)
    assert kept["worst_token"][: len(WHOLE)] == WHOLE
    for given, found in zip(ODD, kept["error_bias"], strict=False):
        half = 0.5001 * 10.0 ** (1 - digits)  # of a unit of the last digit
        assert found == (None if math.isnan(given) else pytest.approx(given, rel=half, abs=0))


def test_what_a_case_says_once_is_in_each_of_its_rows_and_the_bytes_are_the_same_again(large: pd.DataFrame) -> None:
    rows = large.copy()
    encoded = encode_rows(rows).encoded
    assert encoded == encode_rows(large).encoded
    kept = decoded(encoded)
    for name in ("case_id", "series", "world_size", "peak_bytes", "tensor", "rank", "worst_token"):
        assert kept[name] == rows[name].tolist()
    assert kept["error_rel"] == pytest.approx(rows["error_rel"].tolist(), rel=5.1e-6, abs=0)  # half a unit of the sixth
    rows.loc[5, "peak_bytes"] = 7  # one row of a case disagrees: the column is no longer the case's
    assert decoded(encode_rows(rows).encoded)["peak_bytes"] == rows["peak_bytes"].tolist()
