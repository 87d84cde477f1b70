"""`accuracy-evidence` measures a published run again by its own command, once for a state of the code."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from accuracy.cli import evidence
from accuracy.cli.publish import publish
from accuracy.measurement.provenance import code_digest
from accuracy.results import table
from tests.command_line import SHORT, CommandLine


def test_a_run_of_other_code_is_measured_again_into_its_own_folder_and_one_of_this_code_is_not(
    accuracy: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("accuracy.measurement.provenance._git", lambda: {"git_commit": "a", "dirty": False})

    def answered(command: list[str], check: bool) -> "subprocess.CompletedProcess[str]":
        """In this process what would be another one's."""
        assert command[:3] == [sys.executable, "-m", "accuracy"]
        print(end=(answer := accuracy(*command[3:])).out)
        return subprocess.CompletedProcess(command, answer.status)

    monkeypatch.setattr(evidence, "subprocess", SimpleNamespace(run=answered))
    run, reports = tmp_path / "run", tmp_path / "reports"
    accuracy(*SHORT, f"output_dir={run}")
    there = publish(run, reports, name="a-second-problem")
    numbers = table.read_results(there)["error_rel"]
    record = json.loads((there / "run.json").read_text())
    record["fingerprint"]["code"] = "older"
    (there / "run.json").write_text(json.dumps(record))

    words = ["--reports", str(reports), "--runs", str(tmp_path / "runs")]
    assert evidence.main([*words, "ring"]) == 2
    assert "published are " in capsys.readouterr().err
    assert evidence.main([*words, there.parent.name, "--minutes", "0"]) == 0
    assert f"left: {there.parent.name}/a-second-problem" in capsys.readouterr().out
    assert evidence.main(words) == 0
    assert "1 run of 1 have code" in capsys.readouterr().out
    assert json.loads((there / "run.json").read_text())["fingerprint"]["code"] == code_digest()
    assert table.read_results(there)["error_rel"].equals(numbers)
    assert [path.name for path in there.parent.iterdir()] == ["a-second-problem"]

    assert evidence.main([*words, "--dry-run"]) == 0
    assert "measuring" not in capsys.readouterr().out


def test_uncommitted_code_makes_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("accuracy.measurement.provenance._git", lambda: {"git_commit": "a", "dirty": True})
    assert evidence.main(["--reports", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
