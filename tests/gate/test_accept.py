import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from accuracy.cli import check
from accuracy.report import build
from accuracy.report import published as of_publishing
from accuracy.results import storage, table
from accuracy.results.run_table import read_baseline
from tests.gate.made_up import MadeUp, case_id, with_error, without_numbers, write_run

SMALL = MadeUp(variants=("single_device", "ring"), dtypes=("bfloat16",), sizes=(2, 4), seeds=(0, 1))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean git repository, the working directory. No pages: those have tests of their own."""
    monkeypatch.setattr(build, "write_report", lambda folder: None)
    monkeypatch.setattr(of_publishing, "write_growth_figure", lambda rows, path: None)
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "file").write_text("x")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], check=True)
    return folder


def accept(made: MadeUp, tmp_path: Path, *words: str, name: str = "run") -> int:
    run = write_run(tmp_path / name, made)
    return int(check.main(["accept", str(run), *words]))


TARGET = Path("reports/made_up/some-gpu")


def history() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TARGET / "history.jsonl").read_text().splitlines()]


def test_a_run_becomes_a_baseline_with_sums_history_and_a_line_in_the_log(repository: Path, tmp_path: Path) -> None:
    assert accept(SMALL, tmp_path) == 0
    assert len(read_baseline(TARGET).results) > 0
    assert (TARGET / "log.md").read_text() == "- 2026-11-21 0123456789ab: first (the first)\n"
    assert len(history()) == 1
    done = subprocess.run(["sha256sum", "-c", storage.SUMS], cwd=TARGET, capture_output=True)
    assert done.returncode == 0
    run = tmp_path / "run"
    assert check.main([str(run), "--baseline", "reports/made_up", "--require-baseline"]) == 0


def test_the_second_keeps_the_history_and_says_what_changed_in_errors(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accept(SMALL, tmp_path) == 0
    worse = SMALL.but(worse=lambda variant, *cell: 1.2 if variant == "ring" and cell[2] == "dq" else 1.0)
    assert accept(worse, tmp_path, "--reason", "dq in 16 bits", name="second") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("- 2026-11-21 0123456789ab: dq in 16 bits (18 cells, from +0.0% in ")
    assert last.endswith("to +20.0% in ring bfloat16 W=4 dq)") or last.endswith("to +20.0% in ring bfloat16 W=2 dq)")
    assert [each["reason"] for each in history()] == ["first", "dq in 16 bits"]
    name = next(name for name in history()[1]["x_single_device"] if "|tensor=dq|variant=ring|world_size=4" in name)
    first, second = (each["x_single_device"][name] for each in history())
    assert second / first == pytest.approx(1.2, rel=1e-4)


def lost(about, rows):
    return None if about["case_id"] == case_id("ring", "bfloat16", 2, 1) else rows


def dead_rank(about, rows):
    return without_numbers(about, table.FAILED, "rank 1 died") if about["world_size"] == 2 else rows


def not_finite(about, rows):
    return [{**row, "error_rel": math.inf, "nonfinite": 1} for row in rows]


def the_same_in_every_dtype(about, rows):
    same = [{**with_error(row, 0.3, row["single_device_rel"]), "error_max": 0.3, "error_rms": 0.3} for row in rows]
    return same if about["variant"] == "ring" else rows


REFUSED = {
    "a lost case": (SMALL.but(change=lost), "is missing (planned, and not in the table)"),
    "a dead rank": (SMALL.but(change=dead_rank), "is broken (rank 1 died)"),
    "values that are not finite": (SMALL.but(change=not_finite), "no baseline is made of that"),
    "a bug": (SMALL.but(dtypes=("bfloat16", "float16"), change=the_same_in_every_dtype), "is logic ("),
}


def test_what_is_no_baseline_is_refused(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (made, text) in REFUSED.items():
        assert accept(made, tmp_path) == 2, name
        error = capsys.readouterr().err
        assert text in error
        assert len(error.splitlines()) == 1
        assert not TARGET.exists()


def test_neither_a_repository_nor_a_clean_tree_is_needed_and_the_commit_of_the_functions_is_kept(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "file").write_text("changed")
    mine = {"my.fn": {"code": "0", "repositories": [{"repository": "mine", "git_commit": "f" * 40, "dirty": True}]}}
    monkeypatch.chdir(tmp_path)
    assert accept(SMALL.but(provenance={"functions": mine, "dirty": True}), tmp_path, "--to", "kept") == 0
    log = (tmp_path / "kept/made_up/some-gpu/log.md").read_text()
    assert log == "- 2026-11-21 ffffffffffff-dirty: first (the first)\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_baseline_is_replaced_as_a_whole_and_with_a_reason_only(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert accept(SMALL, tmp_path, "--reason", "two\nlines \x1b[31m") == 0
    assert [each["reason"] for each in history()] == ["two lines [31m"]
    assert (TARGET / "log.md").read_text().count("\n") == 1
    before = contents(TARGET)
    for reason in ("", " \n "):
        assert accept(SMALL, tmp_path, "--reason", reason) == 2
        assert "made_up/some-gpu is a baseline already; say with --reason" in capsys.readouterr().err

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    for module, name in (*((storage, f"write_{name}") for name in ("table", "json", "sums")), (build, "write_report")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, stopped)
            with pytest.raises(KeyboardInterrupt):
                check.main(["accept", str(tmp_path / "run"), "--reason", "again"])
        assert contents(TARGET) == before, name
        assert [path.name for path in TARGET.parent.iterdir()] == [TARGET.name]
