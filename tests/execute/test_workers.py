import json
import math
import multiprocessing
import os
import signal
import uuid
from collections import Counter
from contextlib import closing
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy.cli import application as command
from accuracy.config.read import PROCESSORS
from accuracy.core.case import Case
from accuracy.execute import ahead, worker_process
from accuracy.execute import workers as pool
from accuracy.execute.measure import CONTEXT_BYTES, WORKER_BYTES, fitting_workers
from accuracy.execute.measure import work as work_of
from accuracy.execute.plan import plan
from accuracy.execute.settle import settled
from accuracy.execute.worker_process import Work
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results import table
from accuracy.runtime import device
from tests import planting
from tests.command_line import TINY, CommandLine, finish, start
from tests.measuring import COSTS, configuration
from tests.processes import LOOPBACK, listening, marked, wait_until

pytestmark = pytest.mark.xdist_group("workers")


def plant(folder: Path, **statements: str) -> str:
    """Rings that run a statement first, by name, in `parts`; the word of the command line that chooses them."""
    for name, statement in statements.items():
        planting.first(folder / "parts", name, statement)
    return f"variant=[{','.join(statements)},ring]"


def cases(*words: str, folders: tuple[Path, ...] = ()) -> list[Case]:
    planned = plan(configuration(*TINY, "dtype=float32", *words, folders=folders), None)
    return [each.case for each in planned if each.unsupported is None]


def work(folder: Path, *gpus: int | None, limit: float = math.inf) -> Work:
    return Work(Pipeline("test", Cache(None, 0.0)), folder, gpus, 1, limit)


def measured(given: list[Case], how: Work) -> Counter[str]:
    with closing(pool.measure(given, how, lambda case: None)) as ended:
        return Counter(ended)


def rows(folder: Path, read=table.read_results) -> pd.DataFrame:
    found = read(folder).drop(columns=COSTS, errors="ignore")
    return found.sort_values(list(found.columns), ignore_index=True)


def test_the_rows_are_those_of_one_worker_and_one_thread_bit_for_bit(tmp_path: Path, accuracy: CommandLine) -> None:
    """Results, positions and steps, what they cost aside. Two threads for a case are what changes last digits."""
    words = ("device=cpu", "variant=ring", "dtype=float32", "problem.seqlen=256", "reruns.trace=true",
             "reference.folder=null", "report=false")  # fmt: skip
    grid = ("world_size=[1,2]", "seed=[0,1]")
    two_threads = ("workers=1", "threads=2", "world_size=1")
    commands = {"plain": grid, "one worker": (*grid, "workers=1"), "two threads": two_threads}
    about = {}
    for name, more in commands.items():
        given = (*words, f"output_dir={tmp_path / name}", *more)
        answer = finish(start(tmp_path, *given, threads=2)) if name == "plain" else accuracy(*given)
        assert answer.status == 0, answer.err
        run = json.loads((tmp_path / name / "run.json").read_text())
        about[name] = run["workers"], run["fingerprint"]["knobs"]["threads"]
    assert about == {"plain": (2, 1), "one worker": (1, 1), "two threads": (1, 2)}
    for read in (table.read_results, table.read_positions, table.read_steps):
        here, there = rows(tmp_path / "plain", read), rows(tmp_path / "one worker", read)
        assert len(here)
        pd.testing.assert_frame_equal(here, there, check_exact=True)
    plain, other = rows(tmp_path / "plain"), rows(tmp_path / "two threads")
    same_case = plain[plain["case_id"].isin(other["case_id"])].reset_index(drop=True)
    assert len(same_case) == len(other)
    assert not same_case.equals(other)


def test_there_are_no_more_workers_than_cases_or_than_memory_holds() -> None:
    given = replace(configuration(*TINY, "device=cpu", "world_size=[1,2,4]", "variant=ring"), workers=8)
    plans = plan(given, None)
    most = max(bytes_needed(each.case) for each in plans) + WORKER_BYTES
    assert fitting_workers(given, plans, None) == 3
    assert fitting_workers(given, plans, 2 * most) == 2
    assert fitting_workers(given, plans, most // 2) == 1  # the plan has refused what does not fit at all
    assert fitting_workers(replace(given, workers=1), plans, None) == 1


def test_workers_of_one_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs: each holds its own case, and several only where they fit side by side."""
    monkeypatch.setattr(device, "alike", lambda: (0, 1))
    simulated = configuration(*TINY, "device=cpu", "world_size=[1,2,4,8]", "seed=[0,1]", "variant=ring")
    given = replace(simulated, device="cuda", workers=8)
    plans = plan(given, None)
    most = max(bytes_needed(each.case) for each in plans) + CONTEXT_BYTES
    assert fitting_workers(given, plans, most // 2) == 2
    assert fitting_workers(given, plans, 3 * most) == 6
    assert work_of(given, Path("unused"), 6).gpus == [0, 1, 0, 1, 0, 1]
    assert settled(replace(simulated, device="auto", workers=PROCESSORS)).workers == settled(simulated).workers


@pytest.mark.parametrize(
    ("seeds", "gpus", "workers"), [(1, 1, 4), (3, 1, 6), (9, 1, 10), (3, 2, 8), (9, 2, 18)]
)  # fmt: skip
def test_a_gpu_has_a_worker_for_each_reference(
    seeds: int, gpus: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 to 10 of them on each."""
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    given = configuration(*TINY, f"seed={[*range(seeds)]}", "dtype=[float32,float16]")
    assert ahead.side_by_side(gpus, given) == workers


FAULTS = {
    "killed": ("os.kill(os.getpid(), 9)", "the worker process was killed by signal 9 (Killed)"),
    "exits": ("os._exit(7)", "the worker process ended with status 7"),
    "exits_well": ("os._exit(0)", "the worker process ended with status 0"),
    "calls_exit": ("raise SystemExit(3)", "SystemExit: 3 (parts/variant/calls_exit.py:10, in forward)"),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "the worker process was killed after case_seconds=10"),
    "sleeps": ("time.sleep(10**6)", "the worker process was killed after case_seconds=10"),
}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_ends_or_hangs_is_one_failed_row_and_is_replaced(accuracy: CommandLine, workers: int) -> None:
    """Also where one worker is enough: a time limit takes a process that can be ended."""
    faults = dict(list(FAULTS.items())[workers - 1 :: 2])  # each fault once
    chosen = plant(accuracy.folder, **{name: statement for name, (statement, _) in faults.items()})
    words = (*TINY, "device=cpu", "world_size=2", "dtype=float32", "case_seconds=10", "output_dir=run")
    answer = accuracy("--config-dir=parts", *words, chosen, f"workers={workers}")
    assert answer.status == 0
    assert "1 measured, 0 unsupported, 3 failed" in answer.out
    results = table.read_results(accuracy.folder / "run")
    failed = results[results["status"] == table.FAILED]
    expected = {name: why for name, (_, why) in faults.items()}
    assert dict(zip(failed["variant"], failed["reason"], strict=True)) == expected
    assert set(results.loc[results["status"] == table.OK, "variant"]) == {"ring"}


def test_workers_killed_at_any_moment_cost_a_case_each_at_most(tmp_path: Path) -> None:
    """With every third case that begins a worker is killed, busy or idle or just started."""
    given = cases("device=cpu", "variant=[ring,zigzag]", "world_size=[1,2,4]", "seed=[0,1,2,3]")
    begun = Counter[str]()
    killed: list[int] = []
    others = {*multiprocessing.active_children()}  # ranks that another test's calls keep

    def begin(case: Case) -> None:
        begun[case.id] += 1
        living = sorted({*multiprocessing.active_children()} - others, key=lambda each: each.pid or 0)
        if sum(begun.values()) % 3 == 0:
            victim = living[len(killed) % len(living)]
            victim.kill()
            killed.append(victim.pid or 0)

    with closing(pool.measure(given, work(tmp_path, None, None, None), begin)) as ended:
        statuses = Counter(ended)
    assert set(begun) == {case.id for case in given}
    assert len(killed) >= 5
    assert statuses[table.FAILED] <= len(killed)
    assert statuses[table.OK] == len(given) - statuses[table.FAILED] > 0
    assert set(table.read_results(tmp_path)["case_id"]) == set(begun)
    assert {*multiprocessing.active_children()} <= others


@pytest.mark.parametrize(("gpus", "known"), [((0, 0), False), ((0, 1), True)])
def test_a_case_that_shares_its_gpu_has_no_time(
    tmp_path: Path, gpus: tuple[int, int], known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "_work", work(tmp_path, *gpus), raising=False)
    monkeypatch.setattr(worker_process, "_gpu", None, raising=False)
    (case,) = cases("variant=ring", "world_size=2")
    assert worker_process.measure(case) == (table.OK, True)
    found = table.read_results(tmp_path)
    assert found["error_rel"].notna().any()
    assert found["seconds"].notna().any() == known


def test_processes_that_started_ahead_measure_and_none_stays(tmp_path: Path) -> None:
    """Of three, one has ended before there is work and one is not needed; a fourth was guessed for a GPU."""
    given = cases("device=cpu", "variant=ring", "world_size=[1,2]", "seed=[0,1]")
    others, seen = {*multiprocessing.active_children()}, set[BaseProcess]()

    def begin(case: Case) -> None:
        seen.update({*multiprocessing.active_children()} - others)

    with ahead.processes([None, None, 0]) as ask:
        ask([None, None, None])
        wait_until(lambda: len({*multiprocessing.active_children()} - others) == 4, 60)
        started = sorted({*multiprocessing.active_children()} - others, key=lambda each: each.pid or 0)
        started[0].kill()
        started[0].join()
        with closing(pool.measure(given, work(tmp_path, None, None), begin)) as ended:
            assert Counter(ended) == {table.OK: len(given)}
        assert seen <= {*started}
    assert {*multiprocessing.active_children()} <= others


def test_rows_that_a_worker_stored_before_its_end_stay_measured(tmp_path: Path) -> None:
    given = cases("device=cpu", "variant=ring", "world_size=2")
    assert measured(given, work(tmp_path, None)) == {table.OK: 1}
    before = table.read_results(tmp_path)
    assert pool._lost(work(tmp_path, None), given[0], "the worker process ended with status 1") == table.OK
    pd.testing.assert_frame_equal(table.read_results(tmp_path), before)


def test_a_device_on_which_no_worker_starts_is_given_up_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = cases("device=cpu", "variant=[ring,zigzag]", "world_size=[1,2]")
    assert measured(given[:2], work(tmp_path, 99, None)) == {table.OK: 2}
    assert measured(given[2:], work(tmp_path, 99)) == {table.FAILED: 2}
    assert "the worker process of GPU 99 could not start; going on without it" in capfd.readouterr().err


ENDS = ["SIGKILL to it", "SIGINT to all", "SIGTERM to all", "SIGKILL to ranks", "SIGINT to ranks"]


@pytest.mark.stress(1)
@pytest.mark.parametrize("how", ENDS)
def test_however_the_command_ends_no_process_stays_and_its_rows_do(tmp_path: Path, how: str) -> None:
    """The signal goes to the command alone, or as from a terminal to its workers, too; real ranks listened on the
    loopback interface only."""
    name, _, whom = how.split()
    sent, mark = signal.Signals[name], uuid.uuid4().hex
    words = ("--config-dir=parts", *TINY, plant(tmp_path, slow="time.sleep(0.1)"), "device=cpu", "world_size=2")
    where = ("world=processes",) if whom == "ranks" else ("workers=2",)
    grid = (f"seed={list(range(40))}", "output_dir=run")
    process = start(tmp_path, *words, *where, *grid, ACCURACY_TEST_MARK=mark)
    files = tmp_path / "run" / "results"
    wait_until(lambda: len(list(files.glob("[!.]*.parquet"))) >= 5, 120)
    pids = marked(mark)
    assert len(pids) > 2
    assert bool(listening(pids)) is (whom == "ranks")
    assert all(address.startswith(LOOPBACK) for address in listening(pids))
    if whom == "all":
        os.killpg(process.pid, sent)
    else:
        process.send_signal(sent)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == (-sent if sent == signal.SIGKILL else command.INTERRUPTED)
    assert "Traceback" not in error
    wait_until(lambda: not marked(mark), 30)
    results = table.read_results(tmp_path / "run")
    assert 5 <= results["case_id"].nunique() < 80
    assert (results["status"] == table.OK).all()


@pytest.mark.gpu
def test_a_case_that_breaks_its_gpu_is_one_failed_row_and_the_next_is_measured(tmp_path: Path) -> None:
    """An index outside of a tensor ends all work of its process on the GPU."""
    chosen = plant(tmp_path, faulty="torch.zeros(1, device='cuda')[q.long().flatten() + 9].sum().item()")
    given = cases(chosen, "world_size=[4,2,1]", "kernel=eager", folders=(tmp_path / "parts",))
    assert measured(given, work(tmp_path / "run", 0)) == {table.FAILED: 3, table.OK: 3}
    statuses = table.read_results(tmp_path / "run").groupby("variant")["status"].unique()
    assert {name: list(found) for name, found in statuses.items()} == {"faulty": [table.FAILED], "ring": [table.OK]}


@pytest.mark.gpu
def test_on_all_gpus_the_rows_are_those_of_one(accuracy: CommandLine) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    words = (*TINY, "variant=[ring,zigzag]", "dtype=[bfloat16,float32]", "world_size=[1,2,4]", "seed=[0,1]")
    for folder, workers in (("alone", "workers=1"), ("all", "workers=auto")):
        assert accuracy(*words, "kernel=eager", f"output_dir={folder}", workers).status == 0
    here, there = (rows(accuracy.folder / name) for name in ("alone", "all"))
    pd.testing.assert_frame_equal(here, there, check_exact=True)
