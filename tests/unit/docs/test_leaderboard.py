"""The leaderboard of the published table: what each number is, what stands apart, and what the page shows first."""

import re
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.folder import read_folder
from docs.leaderboard import COLUMNS, SHOWN, to_html
from experiments.many_ranks.tables import board, published
from experiments.published import TENSORS

pytestmark = pytest.mark.xdist_group("leaderboard")  # made once
REPORTS = Path(__file__).parents[3] / "reports"


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    folder = published(REPORTS)
    assert folder
    return board(folder)


def test_a_number_is_the_worst_rank_s_error_over_single_device_s_mean_over_seeds(found: pd.DataFrame) -> None:
    folder = published(REPORTS)
    assert folder
    rows = read_folder(folder).results.query("variant == 'transformer_engine_p2p' and mask == 'causal'")
    rows = rows.query("world_size == 8 and heads_kv == 8 and dtype == 'bfloat16' and tensor == 'dk'")
    times = rows["error_rel"] / rows["single_device_rel"]
    of_ranks, whole = rows["rank"] >= 0, rows["rank"] < 0
    (row,) = found.query("variant == 'transformer_engine_p2p' and world_size == 8 and heads_kv == 8").query(
        "dtype == 'bfloat16'"
    ).to_dict("records")  # fmt: skip
    assert row["dk"] == pytest.approx(times[of_ranks].groupby(rows["seed"]).max().mean())
    assert row["all_dk"] == pytest.approx(times[whole].mean())
    assert row["worst"] == max(row[name] for name in TENSORS)


def test_the_page_shows_one_problem_first_and_has_every_other_and_escapes_names(found: pd.DataFrame) -> None:
    page = to_html(found, "x/y/report.html")
    chosen = found[(found[[*SHOWN]] == pd.Series(SHOWN)).all(axis=1)]
    assert len(re.findall(r'<tr data-of="[^"]*">', page)) == len(chosen) > 10
    assert len(re.findall(r'<tr data-of="[^"]*" hidden>', page)) == len(found) - len(chosen)
    assert page.count("<td data-value=") == len(found) * len(COLUMNS)
    assert "<script>x" not in to_html(found.assign(variant="<script>x"), "x")
