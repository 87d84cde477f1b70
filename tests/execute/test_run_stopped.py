import json
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from accuracy.cli import application as command
from accuracy.execute import attend, run
from accuracy.execute.plan import plan
from accuracy.results import table
from tests.command_line import TINY, Answer, CommandLine, finish, start
from tests.measuring import COSTS, composed, configuration
from tests.processes import Process

GRID = (*TINY, "device=cpu", "variant=[ring,bpt_ring]", "dtype=[bfloat16,float32]", "world_size=[1,4]",
        "workers=1", f"seed={list(range(6))}", "output_dir=run")  # fmt: skip
CASES = 2 * 2 * 2 * 6
INTERRUPT = 1  # as soon as so many cases are on disk: on a busy machine more follow before it is heard


@dataclass(frozen=True)
class Stop:
    answer: Answer
    results: pd.DataFrame
    written: dict[str, int]  # when each case's file was written, in nanoseconds
    about: dict


def interrupted(process: Process, folder: Path) -> Stop:
    deadline = time.monotonic() + 600
    while len(list(folder.glob("results/*.parquet"))) < INTERRUPT:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    return look(finish(process), folder)


def look(answer: Answer, folder: Path) -> Stop:
    files = {path.stem: path.stat().st_mtime_ns for path in folder.glob("results/*.parquet")}
    return Stop(answer, pd.read_parquet(folder / "results"), files, json.loads((folder / "run.json").read_text()))


def assert_whole_cases_only(results: pd.DataFrame) -> None:
    """Six tensors on every rank and on all ranks together."""
    rows = results.groupby("case_id").agg(rows=("rank", "size"), world_size=("world_size", "first"))
    assert (rows["rows"] == len(table.TENSORS) * (rows["world_size"] + 1)).all()
    assert (results["status"] == table.OK).all()


def test_an_interrupt_ends_a_run_in_order_and_the_same_command_ends_it_as_an_undisturbed_one(
    accuracy: CommandLine,
) -> None:
    """Of another process with another seed of Python's hashes, so case ids depend on neither. (tests/attack/test_kills
    kills runs.)"""
    folder = accuracy.folder / "run"
    first = interrupted(start(accuracy.folder, *GRID, PYTHONHASHSEED="4711"), folder)
    assert first.answer.status == command.INTERRUPTED
    assert "Traceback" not in first.answer.err
    assert "interrupted: the same command goes on from here" in first.answer.out
    assert INTERRUPT <= len(first.written) < CASES
    assert_whole_cases_only(first.results)
    assert first.about["ended"] is None

    ended = look(accuracy(*GRID), folder)
    assert ended.answer.status == 0
    assert {case_id: ended.written[case_id] for case_id in first.written} == first.written
    done = f"{CASES - len(first.written)} measured, 0 unsupported, 0 failed, {len(first.written)} found done"
    assert done in ended.answer.out
    assert len(ended.written) == CASES
    assert ended.about["ended"] is not None

    shutil.rmtree(folder)
    alone = look(accuracy(*GRID), folder)
    disturbed, undisturbed = (
        each.results.drop(columns=COSTS).sort_values(["case_id", "tensor", "rank"], ignore_index=True)
        for each in (ended, alone)
    )
    assert_whole_cases_only(disturbed)
    pd.testing.assert_frame_equal(disturbed, undisturbed, check_exact=True)
    for name in table.METRICS:
        assert disturbed[name].to_numpy().tobytes() == undisturbed[name].to_numpy().tobytes(), name


def test_an_interrupt_that_a_library_cleared_ends_the_run_after_the_case_at_hand(tmp_path: Path) -> None:
    words = (*TINY, "device=cpu", "variant=ring", "dtype=float32", "world_size=[1,2]", "workers=1")
    chosen = configuration(*words)
    outcome = run.execute(chosen, composed(*words), plan(chosen, None), tmp_path, [], begun=attend.asked.set)
    assert (outcome.interrupted, outcome.ok) == (True, 1)
    assert not attend.asked.is_set()
