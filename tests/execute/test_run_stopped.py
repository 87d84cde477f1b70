"""A run can be killed, interrupted and resumed at any moment, and ends with the numbers of an undisturbed one."""

import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from accuracy.cli import run as command
from accuracy.results import table
from tests.command_line import TINY, Answer, finish, start

SEEDS = ",".join(str(seed) for seed in range(8))
GRID = (
    *TINY,
    "device=cpu",
    "variant=[ring,zigzag]",
    "dtype=[bfloat16,float32]",
    "world_size=[1,2,4]",
    f"seed=[{SEEDS}]",
)
CASES = 2 * 2 * 3 * 8
KILLS, INTERRUPT = (1, 8), 16  # as soon as so many cases are on disk
COST = ["seconds", "peak_bytes"]


@dataclass(frozen=True)
class Stop:
    """What a run had left when it was stopped."""

    answer: Answer
    results: pd.DataFrame
    written: dict[str, int]  # when each case's file was written, in nanoseconds
    about: dict


def stop(process: "subprocess.Popen[str]", folder: Path, with_signal: signal.Signals, after: int) -> Stop:
    """Send the signal as soon as `after` cases are on disk."""
    deadline = time.monotonic() + 600
    while len(list(folder.glob("results/*.parquet"))) < after:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(with_signal)
    return look(finish(process), folder)


def look(answer: Answer, folder: Path) -> Stop:
    files = {path.stem: path.stat().st_mtime_ns for path in folder.glob("results/*.parquet")}
    return Stop(answer, pd.read_parquet(folder / "results"), files, json.loads((folder / "run.json").read_text()))


@dataclass(frozen=True)
class Story:
    """A run killed early and late, then interrupted, then left to end; and the same command left alone."""

    killed: list[Stop]
    interrupted: Stop
    ended: Stop
    undisturbed: Stop


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder, quiet = (tmp_path_factory.mktemp(name) for name in ("disturbed", "undisturbed"))
    alone = start(quiet, *GRID, "output_dir=run")
    try:
        killed = [
            stop(start(folder, *GRID, "output_dir=run"), folder / "run", signal.SIGKILL, after) for after in KILLS
        ]
        interrupted = stop(start(folder, *GRID, "output_dir=run"), folder / "run", signal.SIGINT, INTERRUPT)
        ended = look(finish(start(folder, *GRID, "output_dir=run")), folder / "run")
        return Story(killed, interrupted, ended, look(finish(alone), quiet / "run"))
    finally:
        alone.kill()


def assert_whole_cases_only(results: pd.DataFrame) -> None:
    """Six tensors on every rank and on all ranks together."""
    rows = results.groupby("case_id").agg(rows=("rank", "size"), world_size=("world_size", "first"))
    assert (rows["rows"] == len(table.TENSORS) * (rows["world_size"] + 1)).all()
    assert (results["status"] == table.OK).all()


@pytest.mark.xdist_group("story")
def test_a_kill_leaves_a_readable_table_of_whole_cases(story: Story) -> None:
    for stopped, after in zip(story.killed, KILLS, strict=True):
        assert stopped.answer.status == -signal.SIGKILL
        assert after <= len(stopped.written) < CASES
        assert set(stopped.results["case_id"]) == set(stopped.written)
        assert_whole_cases_only(stopped.results)
        assert stopped.about["ended"] is None


@pytest.mark.xdist_group("story")
def test_an_interrupt_ends_the_run_in_order(story: Story) -> None:
    stopped = story.interrupted
    assert stopped.answer.status == command.INTERRUPTED
    assert "Traceback" not in stopped.answer.err
    assert "interrupted: the same command goes on from here" in stopped.answer.out
    assert INTERRUPT <= len(stopped.written) < CASES
    assert_whole_cases_only(stopped.results)
    assert stopped.about["ended"] is None


@pytest.mark.xdist_group("story")
def test_resuming_keeps_what_is_there_and_measures_the_rest(story: Story) -> None:
    assert story.ended.answer.status == 0
    earlier = story.interrupted.written
    assert {case_id: story.ended.written[case_id] for case_id in earlier} == earlier
    assert (
        f"{CASES - len(earlier)} measured, 0 unsupported, 0 failed, {len(earlier)} found done" in story.ended.answer.out
    )
    assert len(story.ended.written) == CASES
    assert story.ended.about["ended"] is not None


@pytest.mark.xdist_group("story")
def test_a_disturbed_run_ends_with_the_numbers_of_an_undisturbed_one(story: Story) -> None:
    """Bit for bit, what it cost aside."""
    disturbed, undisturbed = (
        each.results.drop(columns=COST).sort_values(["case_id", "tensor", "rank"], ignore_index=True)
        for each in (story.ended, story.undisturbed)
    )
    assert_whole_cases_only(disturbed)
    pd.testing.assert_frame_equal(disturbed, undisturbed, check_exact=True)
    for name in table.METRICS:
        assert disturbed[name].to_numpy().tobytes() == undisturbed[name].to_numpy().tobytes(), name
