"""Whatever ends, hangs or interrupts a process: what was measured stays, and a case without numbers is a row."""

import multiprocessing
import os
import re
import signal
import time
import uuid
from collections import Counter
from contextlib import closing, suppress
from multiprocessing import forkserver
from pathlib import Path

import pandas as pd
import pytest
import torch

import accuracy as package
from accuracy import cli as command
from accuracy.core.case import Case
from accuracy.execute import leftovers, pool, worker
from accuracy.execute import start as start_of_processes
from accuracy.execute.worker import Work
from accuracy.results import table
from accuracy.runtime.changes import Changes
from tests import measuring, planting
from tests.command_line import TINY, CommandLine, finish, start
from tests.measuring import numbers
from tests.processes import LOOPBACK, listening, marked, wait_until
from tests.slow.foreign.functions import eager_out

pytestmark = pytest.mark.xdist_group("workers")
SMALL = {"seqlen": 32, "heads": 2, "heads_kv": 2, "head_dim": 8, "device": "cpu", "dtype": "float32"}


def plant(folder: Path, **statements: str) -> str:
    """Rings that run a statement first, by name, in `parts`; the word of the command line that chooses them."""
    for name, statement in statements.items():
        planting.first(folder / "parts", name, statement)
    return f"variant=[{','.join(statements)},ring]"


def cases(*words: str, folders: tuple[Path, ...] = ()) -> list[Case]:
    return measuring.cases(*TINY, "dtype=float32", *words, folders=folders)


def work(folder: Path, *gpus: int | None) -> Work:
    return Work(measuring.pipeline(), folder, gpus, 1)


def measured(given: list[Case], how: Work) -> Counter[str]:
    with closing(pool.measure(given, how, lambda case: None)) as ended:
        return Counter(ended)


def case_files(folder: Path) -> dict[Path, int]:
    """The files of the cases that are on the disk, and when each was written."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("results/[!.]*.parquet")}


LATE = "the worker process was killed after case_seconds=3"
STUCK = "lock = ctypes.create_string_buffer(64); library = ctypes.{}(None); library.pthread_mutex_lock(lock); "
FAULTS = {  # what a variant does after its forward, or its backward, and why its case fails
    "forward": {
        "killed": ("os.kill(os.getpid(), 9)", "the worker process was killed by signal 9 (Killed)"),
        "exits": ("os._exit(7)", "the worker process ended with status 7"),
        "crashes": ("ctypes.string_at(0)", "the worker process was killed by signal 11 (Segmentation fault)"),
        "calls_exit": ("raise SystemExit(3)", "SystemExit: 3 (parts/variant/calls_exit.py:11, in forward)"),
        "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", LATE),
        "locks": (STUCK.format("PyDLL") + "library.pthread_mutex_lock(lock)", LATE),  # no Python code runs meanwhile
        "raises": ("if rank.world.rank == 1: raise ValueError('planted')", "rank 1: ValueError: planted"),
        "hungry": ("if rank.world.rank: raise torch.OutOfMemoryError('CUDA')", "rank 1: OutOfMemoryError: CUDA"),
        "writes_to_its_inputs": ("q.mul_(2)", "rank 0: RuntimeError: the variant wrote to its inputs"),
    },
    "backward": {
        "gives_nan": ("dq[0, 0, 0, :2] = torch.nan", "4 non-finite values in dq"),  # two on each rank
        "upcasts": ("if rank.world.rank == 1: dv = dv.double()", "WrongResult: dv came as float64, expected float32"),
        "misshapes": ("dk = dk[:, :1]", "WrongResult: dk came as (1, 1, 2, 8), expected (1, 16, 2, 8)"),
        "waits": ("rank.world.rank == 0 and await rank.world.exchange((dq,), 1, 1)", "Deadlock: rank 0 waits for"),
    },
}


def test_what_fails_ends_or_hangs_is_one_failed_row_with_its_reason_and_the_run_goes_on(accuracy: CommandLine) -> None:
    """Where a hanging one was is in its case's traceback."""
    reasons, folder = {}, accuracy.folder
    for way, name, (statement, why) in ((way, *each) for way, faults in FAULTS.items() for each in faults.items()):
        planting.last(folder / "parts", name, way, statement)
        reasons[name] = why
    words = (*TINY, f"variant=[ring,{','.join(reasons)}]", "device=cpu", "world_size=2", "dtype=float32")
    answer = accuracy("--config-dir=parts", *words, "case_seconds=3", "output_dir=run", "workers=2")
    assert answer.status == 0, answer.err
    assert f"1 measured, 0 unsupported, {len(reasons)} failed" in answer.out
    results = table.read_results(folder / "run")
    found = results[results["status"] == table.FAILED].groupby("variant")["reason"].first()
    assert {name: text[: len(reasons[name])] for name, text in found.items()} == reasons
    assert set(results.loc[results["status"] == table.OK, "variant"]) == {"ring"}
    assert results[results["variant"] == "gives_nan"]["nonfinite"].max() == 4  # its numbers are kept
    (locked,) = results.loc[results["variant"] == "locks", "case_id"]
    assert "locks.py" in (folder / "run" / table.TRACEBACKS / f"{locked}.txt").read_text()


RUDE = {
    "forks": "os.fork() or time.sleep(600)",
    "doubles": "os.fork()",
    "replaces": "torch.nn.functional.softmax = torch.log_softmax",
}


def test_what_a_part_forks_and_changes_ends_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = plant(tmp_path, **RUDE)
    given = cases("device=cpu", chosen, "world_size=2", folders=(tmp_path / "parts",))
    usual = cases("device=cpu", "variant=ring", "world_size=2")
    assert measured(given, work(tmp_path / "run", None)) == {table.OK: len(RUDE) + 1}
    assert measured(usual, work(tmp_path / "usual", None)) == {table.OK: 1}
    found = numbers(tmp_path / "run")
    ring = found[found["variant"] == "ring"].reset_index(drop=True)
    pd.testing.assert_frame_equal(ring, numbers(tmp_path / "usual"), check_exact=True)
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    kept = {server, *(each.pid for each in multiprocessing.active_children())}
    assert not {*leftovers.marked(start_of_processes._mark())} - kept
    (replacing,) = (case for case in given if case.variant.name == "replaces")
    softmax = torch.nn.functional.softmax
    again = worker._measured(work(tmp_path / "told", None), replacing, None, Changes(), tmp_path)
    assert again == (table.OK, False)  # a new process is next
    assert torch.nn.functional.softmax is softmax
    assert re.search(r"replaces \(case .* changed torch.nn.functional.softmax", capsys.readouterr().err)


def test_workers_killed_at_any_moment_cost_a_case_each_at_most(tmp_path: Path) -> None:
    """With every third case that begins a worker is killed, busy or idle or just started."""
    given = cases("device=cpu", "variant=ring", "world_size=[1,2,4]", "seed=[0,1,2,3]")
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

    with closing(pool.measure(given, work(tmp_path, None, None), begin)) as ended:
        statuses = Counter(ended)
    assert set(begun) == {case.id for case in given}
    assert len(killed) >= 3
    assert statuses[table.FAILED] <= len(killed)
    assert statuses[table.OK] == len(given) - statuses[table.FAILED] > 0
    assert set(table.read_results(tmp_path)["case_id"]) == set(begun)
    assert {*multiprocessing.active_children()} <= others


def test_stored_rows_stay_and_a_dead_device_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = cases("device=cpu", "variant=ring", "world_size=2")
    assert measured(given, work(tmp_path, None, 99)) == {table.OK: 1}
    before = table.read_results(tmp_path)
    assert pool._lost(work(tmp_path, None), given[0], "the worker process ended with status 1") == table.OK
    pd.testing.assert_frame_equal(table.read_results(tmp_path), before)
    assert measured(given, work(tmp_path / "none", 99)) == {table.FAILED: 1}
    assert "the worker process of GPU 99 could not start; going on without it" in capfd.readouterr().err


def sleeps(q, k, v, **how):
    time.sleep(600)


def catches(q, k, v, **how):
    while True:
        with suppress(Exception):
            time.sleep(600)


def test_a_function_that_never_returns_costs_its_case_and_the_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: no other one is there to end it. The last case is later than the interrupts."""
    monkeypatch.setattr(worker, "seconds_allowed", lambda case, _: 600.0 if case.variant.name == "eager_out" else 0.3)
    found = package.measure([sleeps, catches, eager_out], case_seconds=0.3, **SMALL)
    failed = found[found["status"] == table.FAILED].set_index("variant")["reason"]
    assert sorted(failed.index) == ["catches", "sleeps"]
    for name, reason in failed.items():
        assert reason.startswith("took longer than case_seconds=0.3 (")
        assert reason.endswith(f"in {name})")
    assert set(found.loc[(found["variant"] == "eager_out") & (found["tensor"] != "lse"), "status"]) == {table.OK}


ENDS = ["SIGTERM to all", "SIGKILL to it", "SIGINT to all", "SIGKILL to ranks", "SIGINT to ranks"]
MARK = "ACCURACY_TEST_MARK"


@pytest.mark.parametrize("how", [ENDS[0], *(pytest.param(each, marks=pytest.mark.stress) for each in ENDS[1:])])
def test_however_the_command_ends_no_process_stays_and_it_goes_on_to_the_undisturbed_rows(
    accuracy: CommandLine, how: str
) -> None:
    """The signal goes to the command alone, or as from a terminal to its worker, too, which is a process although it is
    one and has no limit of time; a Ctrl-C while its server imports is none of theirs. Real ranks listened on the
    loopback interface only. The command had another seed of Python's hashes: case ids do not depend on it."""
    name, _, whom = how.split()
    sent, mark, folder = signal.Signals[name], uuid.uuid4().hex, accuracy.folder / "run"
    alone = f"{MARK!r} in os.environ and type(rank.world).__name__ != 'ProcessesWorld' and os._exit(7)"
    chosen = plant(accuracy.folder, slow=f"{MARK!r} in os.environ and time.sleep(0.3)", exits=alone)
    words = ("--config-dir=parts", *TINY, chosen, "device=cpu", "dtype=float32", "world_size=2", "workers=1")
    words += ("world=processes",) * (whom == "ranks")
    every = (*words, "seed=[0,1,2,3]", "output_dir=run")
    process = start(accuracy.folder, *every, **{"PYTHONHASHSEED": "4711", MARK: mark})

    def servers() -> list[int]:
        return [pid for pid in marked(mark) if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    wait_until(servers, 60)
    for pid in servers():
        os.kill(pid, signal.SIGINT)
    wait_until(lambda: len(case_files(folder)) >= 3, 120)
    pids = marked(mark)
    assert len(pids) > 2
    assert bool(listening(pids)) is (whom == "ranks")
    assert {address for address, _ in listening(pids)} <= {*LOOPBACK}
    (os.killpg if whom == "all" else os.kill)(process.pid, sent)
    answer = finish(process)
    assert answer.status == (-sent if sent == signal.SIGKILL else command.INTERRUPTED), answer.err
    assert ("Traceback" in answer.err, "KeyboardInterrupt" in answer.err) == (False, False)
    assert ("interrupted: the same command goes on from here" in answer.out) == (sent != signal.SIGKILL)
    wait_until(lambda: not marked(mark), 30)
    before, results = case_files(folder), table.read_results(folder)
    assert 3 <= results["case_id"].nunique() == len(before) < 12
    failed = results[results["status"] != table.OK]
    assert ({*failed["variant"]} == {"exits"}) is (whom != "ranks")
    again = accuracy(*every)
    assert (again.status, "0 failed" in again.out) == (0, True), again.err
    kept = {path for path in before if path.name.partition(".")[0] not in {*failed["case_id"]}}
    assert {path: case_files(folder)[path] for path in kept} == {path: before[path] for path in kept}
    assert accuracy(*words, "seed=[0,3]", "output_dir=undisturbed").status == 0
    found, undisturbed = numbers(folder), numbers(accuracy.folder / "undisturbed")
    found = found[found["seed"].isin([0, 3])].reset_index(drop=True)
    pd.testing.assert_frame_equal(found, undisturbed, check_exact=True)


@pytest.mark.gpu
def test_a_case_that_breaks_its_gpu_is_one_failed_row_and_the_next_is_measured(tmp_path: Path) -> None:
    """An index outside of a tensor ends all work of its process on the GPU."""
    chosen = plant(tmp_path, faulty="torch.zeros(1, device='cuda')[q.long().flatten() + 9].sum().item()")
    given = cases(chosen, "world_size=[4,2,1]", "kernel=eager", folders=(tmp_path / "parts",))
    assert measured(given, work(tmp_path / "run", 0)) == {table.FAILED: 3, table.OK: 3}
    statuses = table.read_results(tmp_path / "run").groupby("variant")["status"].unique()
    assert {name: list(found) for name, found in statuses.items()} == {"faulty": [table.FAILED], "ring": [table.OK]}
