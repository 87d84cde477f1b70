"""A grid measured by several workers has the rows of one process; a worker's end costs its case; none stays behind."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from accuracy.cli import run as command
from accuracy.execute.measure import WORKER_BYTES, fitting_workers
from accuracy.execute.plan import plan
from accuracy.execute.spread import pool
from accuracy.execute.spread.worker import Start
from accuracy.measure.memory import bytes_needed
from accuracy.reference.cache import Cache
from accuracy.results import table
from accuracy.runtime import device
from tests.command_line import TINY, CommandLine, finish, start
from tests.execute.ranks.test_pool import marked, wait_until
from tests.execute.ranks.worlds import COSTS
from tests.measuring import configuration

pytestmark = pytest.mark.xdist_group("workers")
GRID = (*TINY, "variant=[single_device,ring,zigzag]", "dtype=[bfloat16,float32]", "world_size=[1,2,4]",
        "seed=[0,1]", "reruns.repeat=1", "reruns.trace=true")  # fmt: skip
NOTING = '''"""A ring that writes down in which process it ran."""

import multiprocessing
import os
import time
from pathlib import Path

from accuracy.variant import ring
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, SHARDINGS, backward, unsupported

NOTES = Path({notes!r})


async def forward(rank, q, k, v):
    {statement}
    with open(NOTES, "a") as notes:
        notes.write(f"{{multiprocessing.current_process().name}} in {{os.getpid()}}\\n")
    return await ring.forward(rank, q, k, v)
'''
GAUSSIAN = '''"""Gaussian entries; writes down that they were drawn, which takes as long as a long reference."""

import time
from pathlib import Path


def draw(generator, shape, tensor, options):
    if tensor == "q":
        time.sleep(1.0)
        with open({notes!r}, "a") as notes:
            notes.write("drawn\\n")
    return generator.standard_normal(shape)
'''


def plant(folder: Path, name: str, statement: str) -> Path:
    """A variant of this name in `parts`; the file in which it writes its notes."""
    notes = folder / f"{name}.notes"
    notes.touch()
    (folder / "parts" / "variant").mkdir(parents=True, exist_ok=True)
    code = NOTING.format(notes=str(notes), statement=statement)
    (folder / "parts" / "variant" / f"{name}.py").write_text(code)
    (folder / "parts" / "variant" / f"{name}.yaml").write_text(
        f"# @package variant.{name}\n# A ring of a test\nforward: {name}\nbackward: {name}\nsharding: contiguous\n"
    )
    return notes


def rows(folder: Path, read=table.read_results) -> pd.DataFrame:
    found = read(folder).drop(columns=COSTS, errors="ignore")
    return found.sort_values(list(found.columns), ignore_index=True)


def test_the_rows_are_those_of_one_process_bit_for_bit(accuracy: CommandLine) -> None:
    """Results, positions and steps; what it cost aside."""
    alone = accuracy(*GRID, "device=cpu", "output_dir=alone")
    spread = accuracy(*GRID, "device=cpu", "output_dir=spread", "workers=3")
    assert alone.status == spread.status == 0
    assert alone.out == spread.out
    assert "36 cases on 3 cpu workers, 8 of them unsupported" in spread.err
    for read in (table.read_results, table.read_positions, table.read_steps):
        here, there = (rows(accuracy.folder / name, read) for name in ("alone", "spread"))
        assert len(here)
        pd.testing.assert_frame_equal(here, there, check_exact=True)
    assert json.loads((accuracy.folder / "spread" / "run.json").read_text())["workers"] == 3
    again = accuracy(*GRID, "device=cpu", "output_dir=spread")
    assert "0 measured, 0 unsupported, 0 failed, 36 found done" in again.out


def test_the_numbers_are_those_of_one_thread_however_many_there_are(tmp_path: Path) -> None:
    """On a machine of two threads: two workers by themselves, or a case on both, whose last digits are others."""
    words = ("device=cpu", "variant=ring", "dtype=float32", "world_size=[1,2]", "problem.seqlen=256", "report=false")
    commands = {"plain": (), "one worker": ("workers=1",), "two threads": ("workers=1", "threads=2")}
    tables, fingerprints = {}, {}
    for name, more in commands.items():
        answer = finish(
            start(tmp_path, *words, "reference.folder=null", f"output_dir={tmp_path / name}", *more, threads=2)
        )
        assert answer.status == 0, answer.err
        tables[name] = rows(tmp_path / name)
        about = json.loads((tmp_path / name / "run.json").read_text())
        fingerprints[name] = about["workers"], about["fingerprint"]["knobs"]["threads"]
    assert fingerprints == {"plain": (2, 1), "one worker": (1, 1), "two threads": (1, 2)}
    pd.testing.assert_frame_equal(tables["plain"], tables["one worker"], check_exact=True)
    assert not tables["plain"].equals(tables["two threads"])


def test_there_are_no_more_workers_than_cases_or_than_memory_holds() -> None:
    chosen = replace(configuration(*TINY, "device=cpu", "world_size=[1,2,4]", "variant=ring"), workers=8)
    plans = plan(chosen, None)
    most = max(bytes_needed(each.case) for each in plans) + WORKER_BYTES
    assert fitting_workers(chosen, plans, None) == 3
    assert fitting_workers(chosen, plans, 2 * most) == 2
    assert fitting_workers(chosen, plans, most // 2) == 1  # the plan has unsupported what does not fit at all
    assert fitting_workers(replace(chosen, workers=1), plans, None) == 1
    assert fitting_workers(replace(chosen, device="cuda"), plans, most) == 3  # GPUs have memory of their own


def test_each_reference_is_computed_once_where_that_takes_longer_than_its_cases(accuracy: CommandLine) -> None:
    notes = accuracy.folder / "drawn.notes"
    folder = accuracy.folder / "parts" / "inputs"
    folder.mkdir(parents=True)
    (folder / "noting.py").write_text(GAUSSIAN.format(notes=str(notes)))
    (folder / "noting.yaml").write_text("# @package inputs.noting\n# Of a test\n{}\n")
    words = ("inputs=noting", "variant=[ring,zigzag]", "world_size=[1,2,4]", "seed=[0,1,2,3]", "output_dir=run")
    answer = accuracy("--config-dir=parts", *TINY, "device=cpu", *words, "workers=2")
    assert "24 measured, 0 unsupported, 0 failed" in answer.out, answer.err
    assert notes.read_text().count("drawn") == 4


def test_all_workers_help_with_the_only_reference_there_is(accuracy: CommandLine) -> None:
    notes = plant(accuracy.folder, "noting", "time.sleep(0.01)")
    words = (*TINY, "device=cpu", "variant=noting", "world_size=[1,2,4,8,16,32]", "dtype=float32", "output_dir=run")
    answer = accuracy("--config-dir=parts", *words, "workers=2")
    assert "6 measured, 0 unsupported, 0 failed" in answer.out, answer.err
    noted = notes.read_text().splitlines()
    assert len(noted) == 1 + 2 + 4 + 8 + 16 + 32
    assert sorted({line.partition(" in ")[0] for line in noted}) == ["worker 0", "worker 1"]
    assert len(set(noted)) == 2


FAULTS = {
    "is_killed": ("os.kill(os.getpid(), 9)", r"worker \d was killed by signal 9"),
    "exits": ("os._exit(7)", r"worker \d ended with status 7"),
    "calls_exit": ("raise SystemExit(3)", r"worker \d ended with status 3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_ends_is_one_failed_row_and_is_replaced(accuracy: CommandLine, fault: str) -> None:
    statement, reason = FAULTS[fault]
    plant(accuracy.folder, "faulty", statement)
    words = (*TINY, "device=cpu", "variant=[faulty,ring]", "world_size=[1,2]", "dtype=float32", "output_dir=run")
    answer = accuracy("--config-dir=parts", *words, "workers=2")
    assert answer.status == 0
    assert "2 measured, 0 unsupported, 2 failed" in answer.out
    results = table.read_results(accuracy.folder / "run")
    failed = results[results["status"] == table.FAILED]
    assert set(failed["variant"]) == {"faulty"}
    assert len(failed) == 2
    assert failed["reason"].str.fullmatch(reason).all(), failed["reason"].tolist()
    assert set(results[results["status"] == table.OK]["variant"]) == {"ring"}


def starts(folder: Path, workers: int) -> list[Start]:
    return [Start("test", folder, Cache(None, 0.0), None, 1) for _ in range(workers)]


def cases(*words: str) -> list:
    return [each.case for each in plan(configuration(*TINY, "device=cpu", *words), None) if each.unsupported is None]


def test_what_a_worker_had_written_before_its_end_stays_measured(tmp_path: Path) -> None:
    """It may end between its rows' way to the disk and its word of it."""
    (case,) = cases("variant=ring", "world_size=2")
    with contextlib.closing(pool.measure([case], starts(tmp_path, 1), lambda case: None)) as ended:
        assert list(ended) == [table.OK]
    before = table.read_results(tmp_path)
    assert pool._without_worker(case, starts(tmp_path, 1)[0], "worker 0 was killed by signal 9") == table.OK
    pd.testing.assert_frame_equal(table.read_results(tmp_path), before)


def living() -> list:
    return [each for each in multiprocessing.active_children() if each.name.startswith(("worker", "the worker"))]


def test_workers_killed_at_any_moment_cost_a_case_each_and_no_place_has_two(tmp_path: Path) -> None:
    """With every third case that is handed out a worker dies, busy or just started."""
    given = cases("variant=[ring,zigzag]", "world_size=[1,2,4]", "seed=[0,1,2,3]")
    handed = Counter[str]()
    killed: list[int] = []

    def begin(case) -> None:
        handed[case.id] += 1
        workers = living()
        assert max(Counter(each.name for each in workers).values()) == 1
        if sum(handed.values()) % 3 == 0:
            victim = workers[len(killed) % len(workers)]
            victim.kill()
            killed.append(victim.pid or 0)

    with contextlib.closing(pool.measure(given, starts(tmp_path, 3), begin)) as ended:
        statuses = Counter(ended)
    assert handed == Counter(case.id for case in given)
    assert len(killed) >= 5
    assert statuses[table.FAILED] <= len(killed)
    assert statuses[table.OK] == len(given) - statuses[table.FAILED] > 0
    results = table.read_results(tmp_path)
    assert set(results["case_id"]) == set(handed)
    assert not living()


@pytest.mark.gpu
def test_a_case_that_breaks_its_gpu_is_one_failed_row_and_the_next_is_measured(tmp_path: Path) -> None:
    """An index outside of a tensor ends all work of its process on the GPU."""
    plant(tmp_path, "faulty", "__import__('torch').zeros(1, device='cuda')[q.long().flatten() + 9].sum().item()")
    parts = tmp_path / "parts"
    words = ("variant=[faulty,ring]", "world_size=[4,2,1]", "dtype=float32", "kernel=eager")
    planned = plan(configuration(*TINY, *words, folders=[parts]), None)
    start = Start("test", tmp_path / "run", Cache(None, 0.0), 0, 1)
    with contextlib.closing(pool.measure([each.case for each in planned], [start], lambda case: None)) as ended:
        assert Counter(ended) == {table.FAILED: 3, table.OK: 3}
    statuses = table.read_results(tmp_path / "run").groupby("variant")["status"].unique()
    assert list(statuses["faulty"]) == [table.FAILED]
    assert list(statuses["ring"]) == [table.OK]


@pytest.mark.gpu
def test_on_all_gpus_the_rows_are_those_of_one(accuracy: CommandLine) -> None:
    if device.count() < 2:
        pytest.skip("needs two CUDA devices")
    for folder, word in (("alone", "workers=1"), ("spread", "workers=auto")):
        assert accuracy(*GRID, "kernel=eager", f"output_dir={folder}", word).status == 0
    here, there = (rows(accuracy.folder / name) for name in ("alone", "spread"))
    pd.testing.assert_frame_equal(here, there, check_exact=True)


def test_a_place_where_no_worker_starts_is_given_up_and_the_others_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A GPU that is not to be had: here, one that does not exist."""
    given = cases("variant=ring", "world_size=[1,2,4]")
    good, bad = starts(tmp_path, 1)[0], Start("test", tmp_path, Cache(None, 0.0), 99, 1)
    with contextlib.closing(pool.measure(given, [bad, good], lambda case: None)) as ended:
        assert list(ended) == [table.OK] * 3
    with contextlib.closing(pool.measure(given, [bad], lambda case: None)) as ended:
        assert list(ended) == [table.OK] * 3  # found measured
    others = cases("variant=zigzag", "world_size=[1,2]")
    with contextlib.closing(pool.measure(others, [bad], lambda case: None)) as ended:
        assert list(ended) == [table.FAILED] * 2
    assert (
        "the worker of GPU 99 ended with status 1 before its first case; going on without it" in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("how", "whom"),
    [(signal.SIGKILL, "it"), (signal.SIGTERM, "it"), (signal.SIGTERM, "all"), (signal.SIGINT, "all")],
)
def test_however_the_command_ends_no_worker_stays_and_it_goes_on_from_there(
    tmp_path: Path, how: signal.Signals, whom: str
) -> None:
    """The signal goes to the command alone, or as from a terminal to its workers, too."""
    mark = uuid.uuid4().hex
    words = ("device=cpu", "variant=[ring,zigzag]", "world_size=[1,2]", f"seed={list(range(40))}".replace(" ", ""))
    line = [sys.executable, "-m", "accuracy", *TINY, *words, "workers=2", f"output_dir={tmp_path / 'run'}"]
    environment = {**os.environ, "ACCURACY_TEST_MARK": mark, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    files = tmp_path / "run" / "results"
    wait_until(lambda: len(list(files.glob("[!.]*.parquet"))) >= 5, 90)
    assert len(marked(mark)) > 2
    (process.send_signal if whom == "it" else lambda each: os.killpg(process.pid, each))(how)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == (-how if how == signal.SIGKILL else command.INTERRUPTED)
    assert "Traceback" not in error
    wait_until(lambda: not marked(mark), 20)
    results = table.read_results(tmp_path / "run")
    assert 5 <= results["case_id"].nunique() < 160
    assert (results["status"] == table.OK).all()
    written = {path.name: path.stat().st_mtime_ns for path in files.glob("[!.]*.parquet")}
    again = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert f"{160 - len(written)} measured, 0 unsupported, 0 failed, {len(written)} found done" in again.stdout
    assert {name: (files / name).stat().st_mtime_ns for name in written} == written
