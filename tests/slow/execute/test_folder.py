"""A run's folder: one run at a time, and one bad file never stops a run or spoils a number."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from accuracy.core.errors import ConfigError
from accuracy.execute import folder as folders
from accuracy.results import table
from tests.command_line import SHORT, CommandLine
from tests.measuring import numbers

WORDS = (*SHORT, "seed=[0,1]", "output_dir=run")


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


@pytest.fixture
def finished(accuracy: CommandLine) -> CommandLine:
    assert accuracy(*WORDS).status == 0
    return accuracy


def test_a_damaged_file_is_measured_again_and_nothing_else_is(finished: CommandLine) -> None:
    run = finished.folder / "run"
    before = numbers(run)
    path, other = sorted((run / "results").glob("*.parquet"))
    for name, damage in DAMAGES.items():
        damage(path, other)
        answer = finished(*WORDS)
        assert answer.status == 0, (name, answer.err)
        assert "1 measured, 0 unsupported, 0 failed, 1 found done" in answer.out, name
        pd.testing.assert_frame_equal(numbers(run), before)
    DAMAGES["cut off"](path, path)
    with pytest.raises(ConfigError, match=r"has a damaged file \(.*\); repeat the run's command, which measures such"):
        table.read_results(run)


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
