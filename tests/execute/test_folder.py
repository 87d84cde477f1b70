"""A run's folder: one run at a time, and one bad file never stops a run or spoils a number."""

import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from accuracy.core.errors import ConfigError
from accuracy.execute import folder as folders
from accuracy.results import storage, table
from tests.command_line import SHORT, CommandLine
from tests.measuring import COSTS
from tests.report.synthetic import Shape, write_run
from tests.sampling import seeds

SMALL = Shape(("single_device", "ring"), ("bfloat16",), (1, 2), (0,))
WORDS = (*SHORT, "seed=[0,1]", "output_dir=run")


def emptied(path: Path, other: Path) -> None:
    pq.write_table(table.RESULTS_SCHEMA.empty_table(), path)


def without(name: str) -> Callable[[Path, Path], None]:
    def damage(path: Path, other: Path) -> None:
        pd.read_parquet(path).assign(**{name: None}).to_parquet(path)

    return damage


def flipped(path: Path, other: Path) -> None:
    """In a page of numbers, which has a checksum; of headers and the footer not every byte is guarded."""
    column = pq.read_metadata(path).row_group(0).column(table.RESULTS_SCHEMA.get_field_index("error_rel"))
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 16
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "cut off": lambda path, other: path.write_bytes(path.read_bytes()[:900]),
    "empty": lambda path, other: path.write_bytes(b""),
    "text": lambda path, other: path.write_text("hello"),
    "no rows": emptied,
    "no status": without("status"),
    "no code": without("code"),
    "another case's": lambda path, other: shutil.copy(other, path),
    "a bit flipped": flipped,
}


def numbers(folder: Path) -> pd.DataFrame:
    rows = table.read_results(folder).drop(columns=COSTS)
    return rows.sort_values(["case_id", "tensor", "rank"], ignore_index=True)


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


@pytest.mark.stress
@pytest.mark.parametrize("seed", seeds(1000))
def test_a_file_damaged_anywhere_is_measured_again_or_has_the_same_numbers(tmp_path: Path, seed: int) -> None:
    run = write_run(tmp_path, SMALL)
    before = table.read_results(run)
    draw = random.Random(seed)
    path = draw.choice(sorted((run / "results").glob("*.parquet")))
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content[: draw.choice([None, draw.randrange(len(content))])])
    if storage.finished_case(run, path.stem) is not None:
        pd.testing.assert_frame_equal(table.read_results(run), before)


def test_a_damaged_table_and_a_damaged_run_json_are_told_in_one_line(finished: CommandLine) -> None:
    for content in ("[]", "null", "{", "", "{}", '{"fingerprint": null}', "[" * 5000, "\udcff"):
        (finished.folder / "run" / "run.json").write_bytes(content.encode(errors="surrogateescape"))
        answer = finished(*WORDS)
        assert answer.status == 2, content
        assert answer.err.startswith("accuracy: run/run.json ")
        assert answer.err.endswith("restore it, or choose another output_dir\n")
        assert answer.err.count("\n") == 1
    path = next((finished.folder / "run" / "results").glob("*.parquet"))
    DAMAGES["cut off"](path, path)
    with pytest.raises(ConfigError, match=r"has a damaged file \(.*\); repeat the run's command, which measures such"):
        table.read_results(finished.folder / "run")


def test_files_of_others_are_left_alone_and_what_a_killed_run_left_is_removed(
    finished: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    run = finished.folder / "run"
    stranger = run / "results" / "notes.txt"
    left = [run / "results" / ".0123456789ab.parquet.4711", run / ".run.json.4711"]
    for path in (stranger, *left):
        path.write_text("half")
    assert "0 measured, 0 unsupported, 0 failed, 2 found done" in finished(*WORDS).out
    assert caplog.messages == [f"accuracy: {stranger.relative_to(finished.folder)} is no file of a run and is not read"]
    assert stranger.read_text() == "half"
    assert not any(path.exists() for path in left)


def test_cases_of_another_plan_are_not_read(finished: CommandLine) -> None:
    assert finished(*SHORT, "output_dir=run", "seed=5", "problem.seqlen=64").status == 0
    rows = table.read_results(finished.folder / "run")
    assert set(zip(rows["seed"], rows["seqlen"], strict=True)) == {(5, 64)}
    assert set(table.read_side(finished.folder / "run", "positions")["case_id"]) == set(rows["case_id"])


def test_a_second_run_on_a_folder_is_refused_and_told_the_holder(accuracy: CommandLine) -> None:
    with folders.opened(accuracy.folder / "run", "cpu"):
        answer = accuracy(*WORDS)
    assert answer.status == 2
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    advice = "wait for its end, or choose another output_dir"
    assert answer.err == f"accuracy: output_dir=run is in use by another run ({holder}); {advice}\n"
    assert accuracy(*WORDS).status == 0
