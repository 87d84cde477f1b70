"""The leaderboard of small made-up runs: what each number is, where it leads, and in which order rows come."""

import json
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.folder import NoReport
from accuracy.results import storage, table
from docs.leaderboard import REAL, SIMULATED, Cell, leaderboard, to_html, write_leaderboard
from tests.unit.report.synthetic import Shape, cases, rows_of
from tests.unit.report.tables import logic, times

pytestmark = pytest.mark.xdist_group("leaderboard")  # made once
FEW = {"dtypes": ("bfloat16",), "seeds": (0, 1), "tensors": ("out", "dq", "dk", "dv")}
GROWTH = {"single_device": 0.0, "ring": 0.0, "zigzag": 0.5}
OWN, THEIRS = ("zigzag", "0.9", "bfloat16"), ("ring", "0.1.8", "bfloat16")
FN = "fn=accuracy.package.ring_flash_attn.ring,layout=bshd"


def publish(reports: Path, place: str, rows: pd.DataFrame, started: str) -> None:
    folder = reports / place
    folder.mkdir(parents=True)
    lean = storage.lean_results(rows.reindex(columns=table.RESULTS_SCHEMA.names))
    storage.write_table(lean, folder / "results.parquet")
    about = {"cases": [], "config": {}, "started": started, "fingerprint": {"accuracy": "0.9"},
             "provenance": {"packages": {"ring-flash-attn": "0.1.8"}}}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(about))


def rows(world: str, sizes: tuple[int, ...], **changes: object) -> pd.DataFrame:
    shape = Shape(("single_device", "ring", "zigzag"), world_sizes=sizes, exponents=GROWTH, **FEW)
    found = pd.DataFrame([row for case in cases(shape) for row in rows_of(shape, case)])
    return found.assign(world=found["world"].where(found["variant"] == "single_device", world), **changes)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ring is somebody's, with a wrong dk; an older run of 4 real ranks is twice as bad, one of 2 is newer."""
    folder = tmp_path_factory.mktemp("reports")
    real = logic(rows(REAL, (2, 4)))
    real["options"] = real["options"].where(real["variant"] != "ring", FN)
    publish(folder, "packages/h200-x4", real, "2026-02")
    publish(folder, "packages/older", times(real, real["rank"] >= -1, 2.0), "2026-01")
    publish(folder, "packages/h200-x2", rows(REAL, (2,)), "2026-03")
    publish(folder, "growth/h200", rows(SIMULATED, (4, 64)), "2026-03")
    publish(folder, "other/full", rows(SIMULATED, (64,), mask="full"), "2026-04")
    publish(folder, "other/knob", rows(SIMULATED, (64,), precision="merge=double"), "2026-04")
    return folder


@pytest.fixture(scope="module")
def board(reports: Path) -> pd.DataFrame:
    return leaderboard(reports)


def test_a_number_is_the_worst_rank_s_error_over_single_device_s_mean_over_seeds(board: pd.DataFrame) -> None:
    """Made up: 1.15 W^0.5 on all ranks, 1.6 times as much on rank 0; rounded to 12 bits in a published table."""
    for where, size, page in ((REAL, 4, "packages/h200-x4/report.html"), (SIMULATED, 64, "growth/h200/report.html")):
        cell = board.loc[OWN, (where, "dq")]
        assert cell.value == pytest.approx(1.15 * 1.6 * size**0.5, rel=2**-11)
        assert (cell.page, "tensor=dq" in cell.shows, f"world_size={size}" in cell.shows) == (page, True, True)


def test_time_memory_versions_and_faults_stand_beside_and_the_most_accurate_comes_first(board: pd.DataFrame) -> None:
    assert board.loc[OWN, (REAL, "ms")].value == pytest.approx(60)
    assert board.loc[OWN, (REAL, "MiB")].value == pytest.approx(2.4e6 / 2**20)
    assert (SIMULATED, "ms") not in board.columns
    assert "dk: logic" in board.loc[THEIRS, ("faults", "")]
    assert board.loc[OWN, ("faults", "")] == ""
    worst = [max(cell.value for cell in row) for row in board[REAL][["out", "dq", "dk", "dv"]].dropna().to_numpy()]
    assert len(worst) > 2
    assert worst == sorted(worst)


def test_few_ranks_are_named_where_no_more_were_measured_and_no_such_run_too(tmp_path: Path) -> None:
    with pytest.raises(NoReport, match="holds no run"):
        leaderboard(tmp_path)
    publish(tmp_path, "packages/h200-x2", rows(REAL, (2,)), "2026-03")
    assert leaderboard(tmp_path).loc[OWN, (REAL, "out")].text.endswith(" (2 ranks)")


def test_the_page_links_every_number_to_its_report_and_escapes_names(reports: Path, tmp_path: Path) -> None:
    board = write_leaderboard(reports, tmp_path / "leaderboard.html")
    page = (tmp_path / "leaderboard.html").read_text()
    numbers = sum(isinstance(cell, Cell) for cell in board.to_numpy().ravel())
    assert page.count('<a href="packages/') + page.count('<a href="growth/') == numbers
    assert "<script>x" not in to_html(board.rename(index={"zigzag": "<script>x"}))
