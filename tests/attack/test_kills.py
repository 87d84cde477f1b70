"""A command that is killed at any moment loses nothing: repeated, it gives what it would have given undisturbed."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.cli import check, report
from accuracy.report import build
from accuracy.report import published as of_publishing
from accuracy.results import table
from accuracy.results.run_table import read_baseline
from tests.attack.killing import killed
from tests.command_line import SHORT, CommandLine
from tests.gate.made_up import MadeUp, write_run
from tests.measuring import COSTS

SMALL = MadeUp(variants=("single_device", "ring"), dtypes=("bfloat16",), sizes=(2,), seeds=(0, 1))
BASELINE = Path("reports/made_up/some-gpu")
SEEDS = range(25)  # of each of the four commands
WORDS = (*SHORT, "seed=[0,1,2]", "output_dir=run")


def numbers(folder: Path) -> pd.DataFrame:
    rows = table.read_results(folder).drop(columns=COSTS)
    return rows.sort_values(["case_id", "tensor", "rank"], ignore_index=True)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[pd.DataFrame]:
    """The numbers of an undisturbed run, from the first test that has them."""
    return []


@pytest.mark.stress(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_run_keeps_what_it_measured_and_goes_on(
    seed: int, accuracy: CommandLine, measured: list[pd.DataFrame]
) -> None:
    if not measured:
        assert accuracy(*WORDS).status == 0
        measured.append(numbers(accuracy.folder / "run"))
        shutil.rmtree(accuracy.folder / "run")
    run = accuracy.folder / "run"
    killed(lambda: accuracy(*WORDS), accuracy.folder, random.Random(f"run {seed}"))
    before = {path: path.stat().st_mtime_ns for path in run.glob("results/*.parquet")}
    answer = accuracy(*WORDS)
    assert answer.status == 0, answer
    assert f"{len(before)} found done" in answer.out or not before
    assert {path: path.stat().st_mtime_ns for path in before} == before
    pd.testing.assert_frame_equal(numbers(run), measured[0], check_exact=True)
    assert not list(run.rglob(".*.[0-9]*"))


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(of_publishing, "write_growth_figure", lambda rows, path: None)
    write_run(tmp_path / "run", SMALL)
    return tmp_path


@pytest.fixture
def without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "write_report", lambda folder: None)


def accept(folder: Path, reason: str) -> int:
    return int(check.main(["accept", str(folder / "run"), "--to", str(folder / "reports"), "--reason", reason]))


@pytest.mark.stress(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_report_leaves_the_old_page_or_the_new_one(seed: int, whole: Path) -> None:
    page = whole / "run" / "report.html"
    assert report.main([str(page.parent)]) == 0
    new = page.read_bytes()
    page.write_bytes(b"old")
    killed(lambda: report.main([str(page.parent)]), whole, random.Random(f"report {seed}"))
    assert page.read_bytes() in (b"old", new)
    assert report.main([str(page.parent)]) == 0
    assert page.read_bytes() == new


@pytest.mark.stress(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_check_leaves_whole_files_and_says_the_same_again(
    seed: int, whole: Path, without_pages: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accept(whole, "first") == 0
    words = [str(whole / "run"), "--baseline", str(whole / BASELINE), "--out", str(whole / "out")]

    def checked() -> tuple[Any, str]:
        capsys.readouterr()
        return check.main(words), capsys.readouterr().out

    first, made, before = checked(), files(whole / "out"), files(whole / BASELINE)
    shutil.rmtree(whole / "out")
    killed(lambda: check.main(words), whole, random.Random(f"check {seed}"))
    left = files(whole / "out") if (whole / "out").exists() else {}
    assert all(made[name] == content for name, content in left.items() if not name.startswith("."))
    assert checked() == first
    assert made.items() <= files(whole / "out").items()
    assert files(whole / BASELINE) == before


def reasons(target: Path) -> list[str]:
    return [json.loads(line)["reason"] for line in (target / "history.jsonl").read_text().splitlines()]


@pytest.mark.stress(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_accept_leaves_one_baseline_or_the_other_whole(seed: int, whole: Path, without_pages: None) -> None:
    target = whole / BASELINE
    assert accept(whole, "first") == 0
    before, rows = files(target), read_baseline(target).results
    killed(lambda: accept(whole, "again"), whole, random.Random(f"accept {seed}"))
    lines = len(reasons(target))
    assert lines == 2 or files(target) == before
    pd.testing.assert_frame_equal(read_baseline(target).results, rows)
    assert accept(whole, "after it") == 0
    assert reasons(target) == [*["first", "again"][:lines], "after it"]
    assert [path.name for path in target.parent.iterdir()] == [target.name]
