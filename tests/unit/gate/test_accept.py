import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from accuracy.cli import check
from accuracy.core import paths
from accuracy.results import storage
from accuracy.results.run_table import read_baseline
from tests.command_line import line_of
from tests.unit.attack.edits import on_rows
from tests.unit.gate.made_up import MadeUp, case_id, not_finite, with_error, write_run

SMALL = MadeUp(variants=("single_device", "ring"), sizes=(2, 4), seeds=(0, 1))
TARGET = Path("reports/made_up/some-gpu")


@pytest.fixture(autouse=True)
def _in_a_folder_without_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def accept(made: MadeUp, reason: str = "") -> int:
    return int(check.main(["accept", str(write_run(Path("run"), made)), "--reason", reason]))


def history() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TARGET / "history.jsonl").read_text().splitlines()]


def test_a_run_becomes_a_baseline_with_sums_and_a_second_keeps_the_history_and_says_what_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mine = {"my.fn": {"code": "0", "repositories": [{"repository": "mine", "git_commit": "f" * 40, "dirty": True}]}}
    assert accept(SMALL.but(provenance={"functions": mine})) == 0
    assert not [*TARGET.glob("*.html")]  # a third of a megabyte that each change would leave in git
    assert (TARGET / "log.md").read_text() == "- 2026-11-21 ffffffffffff-dirty: first (the first)\n"
    assert subprocess.run(["sha256sum", "-c", storage.SUMS], cwd=TARGET, capture_output=True).returncode == 0
    assert check.main(["run", "--baseline", "reports/made_up", "--require-baseline"]) == 0
    worse = SMALL.but(worse=lambda variant, *cell: 1.2 if variant == "ring" and cell[2] == "dq" else 1.0)
    assert accept(worse, "dq in\n16 bits \x1b[31m") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "to +20.0% in ring bfloat16 W=" in last
    assert [each["reason"] for each in history()] == ["first", "dq in 16 bits [31m"]
    assert history()[1]["change"] in last


def lost(about, rows):
    return None if about["case_id"] == case_id("ring", "bfloat16", 2, 1) else rows


def the_same_in_every_dtype(about, rows):
    same = [{**with_error(row, 0.3, row["single_device_rel"]), "error_max": 0.3, "error_rms": 0.3} for row in rows]
    return same if about["variant"] == "ring" else rows


def test_what_is_no_baseline_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for change, text in (
        (lost, "is missing (planned, and not in the table)"), (the_same_in_every_dtype, "is logic ("),
        (lambda about, rows: [not_finite(row) for row in rows], "no baseline is made of that"),
    ):  # fmt: skip
        assert accept(SMALL.but(dtypes=("bfloat16", "float16"), change=change)) == 2
        assert (text in line_of(capsys, "accuracy accept"), TARGET.exists()) == (True, False)


def test_a_table_that_was_changed_and_one_seed_are_no_baseline_and_it_is_said_what_one_is_good_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = SMALL.but(sizes=(2,))
    write_run(Path("run"), tiny)
    on_rows(Path("run"), lambda rows: rows.assign(dtype="float16"))
    assert check.main(["accept", "run"]) == 2
    assert "has rows that are not those the run ended with" in capsys.readouterr().err
    assert accept(tiny.but(seeds=(3,))) == 2
    assert "run has 1 seed in 12 cells" in capsys.readouterr().err
    assert check.main(["accept", "run", "--force"]) == 0
    assert "1 seed in each of 12 cells: no test can use it" in capsys.readouterr().out
    assert accept(tiny.but(seeds=tuple(range(8))), "more seeds") == 0
    assert "8 seeds in each of 12 cells" in capsys.readouterr().out
    assert accept(tiny.but(seeds=tuple(range(24))), "more seeds") == 0
    assert "8 fresh seeds surely catch a rise of 10% in 12 cells" in capsys.readouterr().out


def test_a_baseline_is_replaced_as_a_whole_and_with_a_reason_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in TARGET.iterdir()}

    assert accept(SMALL) == 0
    before = contents()
    for reason in ("", " \n "):
        assert accept(SMALL, reason) == 2
        assert "made_up/some-gpu is a baseline already; say with --reason" in capsys.readouterr().err

    def stopped(*given: object) -> None:
        raise KeyboardInterrupt

    (TARGET.parent / f".{TARGET.name}.4711").mkdir()  # of a command that was killed
    for module, name in (*((storage, f"write_{name}") for name in ("table", "json", "sums")), (paths, "_exchange")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, stopped)
            with pytest.raises(KeyboardInterrupt):
                check.main(["accept", "run", "--reason", "again"])
        assert contents() == before, name
        assert [path.name for path in TARGET.parent.iterdir()] == [TARGET.name]
    assert len(read_baseline(TARGET).results) > 0
