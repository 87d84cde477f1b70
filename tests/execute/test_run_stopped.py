import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from accuracy.cli import application as command
from accuracy.results import table
from tests.command_line import TINY, Answer, CommandLine, finish, start
from tests.measuring import COSTS
from tests.processes import Process

pytestmark = pytest.mark.xdist_group("story")
GRID = (*TINY, "device=cpu", "variant=[ring,zigzag]", "dtype=[bfloat16,float32]", "world_size=[1,4]",
        "workers=1", f"seed={list(range(4))}", "output_dir=run")  # fmt: skip
CASES = 2 * 2 * 2 * 4
KILL, INTERRUPT = 2, 5  # as soon as so many cases are on disk


@dataclass(frozen=True)
class Stop:
    answer: Answer
    results: pd.DataFrame
    written: dict[str, int]  # when each case's file was written, in nanoseconds
    about: dict


def stop(process: Process, folder: Path, with_signal: signal.Signals, after: int) -> Stop:
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


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[object, Stop]:
    """A run killed, then interrupted, then left to end."""
    folder = tmp_path_factory.mktemp("disturbed")
    stops = {KILL: signal.SIGKILL, INTERRUPT: signal.SIGINT}
    found = {after: stop(start(folder, *GRID), folder / "run", how, after) for after, how in stops.items()}
    return found | {"ended": look(finish(start(folder, *GRID)), folder / "run")}


def assert_whole_cases_only(results: pd.DataFrame) -> None:
    """Six tensors on every rank and on all ranks together."""
    rows = results.groupby("case_id").agg(rows=("rank", "size"), world_size=("world_size", "first"))
    assert (rows["rows"] == len(table.TENSORS) * (rows["world_size"] + 1)).all()
    assert (results["status"] == table.OK).all()


def test_a_kill_leaves_a_readable_table_of_whole_cases(story: dict[object, Stop]) -> None:
    stopped = story[KILL]
    assert stopped.answer.status == -signal.SIGKILL
    assert KILL <= len(stopped.written) < CASES
    assert set(stopped.results["case_id"]) == set(stopped.written)
    assert_whole_cases_only(stopped.results)
    assert stopped.about["ended"] is None


def test_an_interrupt_ends_the_run_in_order(story: dict[object, Stop]) -> None:
    stopped = story[INTERRUPT]
    assert stopped.answer.status == command.INTERRUPTED
    assert "Traceback" not in stopped.answer.err
    assert "interrupted: the same command goes on from here" in stopped.answer.out
    assert INTERRUPT <= len(stopped.written) < CASES
    assert_whole_cases_only(stopped.results)
    assert stopped.about["ended"] is None


def test_resuming_keeps_what_is_there_and_measures_the_rest(story: dict[object, Stop]) -> None:
    ended, earlier = story["ended"], story[INTERRUPT].written
    assert ended.answer.status == 0
    assert {case_id: ended.written[case_id] for case_id in earlier} == earlier
    done = f"{CASES - len(earlier)} measured, 0 unsupported, 0 failed, {len(earlier)} found done"
    assert done in ended.answer.out
    assert len(ended.written) == CASES
    assert ended.about["ended"] is not None


def test_a_disturbed_run_ends_with_the_numbers_of_an_undisturbed_one(
    story: dict[object, Stop], accuracy: CommandLine
) -> None:
    alone = look(accuracy(*GRID), accuracy.folder / "run")
    disturbed, undisturbed = (
        each.results.drop(columns=COSTS).sort_values(["case_id", "tensor", "rank"], ignore_index=True)
        for each in (story["ended"], alone)
    )
    assert_whole_cases_only(disturbed)
    pd.testing.assert_frame_equal(disturbed, undisturbed, check_exact=True)
    for name in table.METRICS:
        assert disturbed[name].to_numpy().tobytes() == undisturbed[name].to_numpy().tobytes(), name
