"""A run's folder: one run at a time, and one bad file never stops a run or spoils a number."""

import json
import os
import socket

import pytest

from accuracy.execute import folder as folders
from accuracy.results import table
from tests.command_line import SHORT, CommandLine

WORDS = (*SHORT, "seed=[0,1]", "output_dir=run")


@pytest.fixture
def finished(accuracy: CommandLine) -> CommandLine:
    assert accuracy(*WORDS).status == 0
    return accuracy


def test_a_run_json_that_is_damaged_or_of_another_setting_is_refused_in_one_line(finished: CommandLine) -> None:
    path = finished.folder / "run" / "run.json"
    about = json.loads(path.read_text())
    told = {}
    for key in ("code", "device", "torch", "knobs"):
        other = json.dumps(about | {"fingerprint": about["fingerprint"] | {key: "another"}}).encode()
        told[other] = f"output_dir=run holds rows of another setting ({key} was another, is "
    damaged = (b"null", b"{", b'{"fingerprint": null}', b"[" * 5000, b"\xff")
    for content, words in (told | dict.fromkeys(damaged, "run/run.json ")).items():
        path.write_bytes(content)
        answer = finished(*WORDS, "seed=2")
        assert (answer.status, answer.err.count("\n"), path.read_bytes()) == (2, 1, content)
        assert answer.err.startswith(f"accuracy: {words}")
    assert len(list(finished.folder.glob("run/results/*"))) == 2


def test_others_files_stay_and_a_killed_run_s_go(finished: CommandLine, caplog: pytest.LogCaptureFixture) -> None:
    run = finished.folder / "run"
    stranger = run / "results" / "notes.txt"
    left = [run / "results" / ".0123456789ab.parquet.4711", run / ".run.json.4711"]
    for path in (stranger, *left):
        path.write_text("half")
    assert "0 measured, 0 unsupported, 0 failed, 2 found done" in finished(*WORDS).out
    assert caplog.messages == [f"accuracy: {stranger.relative_to(finished.folder)} is no file of a run and is not read"]
    assert (stranger.read_text(), [path.exists() for path in left]) == ("half", [False, False])
    assert finished(*SHORT, "output_dir=run", "seed=5", "problem.seqlen=64").status == 0
    rows = table.read_results(run)  # of this plan alone
    assert set(zip(rows["seed"], rows["seqlen"], strict=True)) == {(5, 64)}
    assert set(table.read_side(run, "positions")["case_id"]) == set(rows["case_id"])


def test_a_second_run_on_a_folder_is_refused_and_told_the_holder(accuracy: CommandLine) -> None:
    with folders.opened(accuracy.folder / "run", "cpu"):
        answer = accuracy(*WORDS)
    assert answer.status == 2
    assert f"output_dir=run is in use by another run (process {os.getpid()} on {socket.gethostname()})" in answer.err
    assert accuracy(*WORDS).status == 0
