"""Real ranks agree with simulated ones bit for bit, and no fault of a rank costs more than its case."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import pandas as pd
import pytest

from accuracy.execute.plan import Planned, plan
from accuracy.execute.ranks.base import Failed, RankEnded, WorldFailed
from accuracy.execute.ranks.pool import Pool
from accuracy.measure.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results import table
from tests.execute.ranks.worlds import assert_same_bits, rows_of
from tests.measuring import TINY, configuration
from tests.processes import alive, marked, wait_until
from tests.variants import schedules, skip_if_bound_to_a_kernel

pytestmark = pytest.mark.xdist_group("processes")  # one pool serves all of them


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    ranks = Pool((1, 2, 3, 4), "gloo", timeout=30.0)
    yield ranks
    ranks.close()


def plans_of(*words: str, folder: Path | None = None) -> list[Planned]:
    return plan(configuration(*TINY, *words, folders=[folder] if folder else []), None)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("variant", schedules())
def test_both_worlds_give_the_same_bits(pool: Pool, variant: str, dtype: str) -> None:
    skip_if_bound_to_a_kernel(variant)
    here, there = Pipeline("test", Cache(None, 0)), Pipeline("test", Cache(None, 0), pool.run)
    runnable = [each for each in plans_of(f"variant=[{variant},ring]", "world_size=[1,2,3,4]", f"dtype={dtype}")
                if each.case.variant.name == variant and each.unsupported is None]  # fmt: skip
    assert runnable
    for each in runnable:
        assert_same_bits(here, there, each.case)


class Told:
    """A rank that has something to say, of which the pool hears through a pipe."""

    def __init__(self, rank: int, says) -> None:
        self.rank, self.says = rank, says
        self.here, there = Pipe()
        there.send(None)

    @property
    def signs(self):
        return (self.here,)

    def receive(self):
        self.here.recv()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def test_a_rank_s_end_is_the_reason_and_not_the_complaint_of_one_that_lost_it() -> None:
    pool = Pool((2,), "gloo", timeout=5.0)
    complaint = Told(0, Failed("RuntimeError: Connection closed by peer"))
    with pytest.raises(WorldFailed, match="rank 1 was killed by signal 9"):
        pool._collect([complaint, Told(1, RankEnded("rank 1 was killed by signal 9"))], 5.0)
    with pytest.raises(WorldFailed, match="rank 0: RuntimeError: Connection closed by peer"):
        pool._collect([Told(0, complaint.says), Told(1, Failed("another"))], 5.0)


def test_processes_start_once_for_all_world_sizes(pool: Pool) -> None:
    pipeline = Pipeline("test", Cache(None, 0), pool.run)
    first, second = plans_of("variant=ring", "world_size=[2,4]")
    rows_of(pipeline, first.case)
    processes = [worker.process.pid for worker in pool.workers]
    rows_of(pipeline, second.case)
    assert [worker.process.pid for worker in pool.workers] == processes


FAULTS = {
    "raises": ("raise ValueError('planted')", r"rank 1: ValueError: planted"),
    "is_killed": ("__import__('os').kill(__import__('os').getpid(), 9)", r"rank 1 was killed by signal 9"),
    "calls_exit": ("raise SystemExit(0)", r"rank 1: SystemExit: 0"),
    "exits": ("__import__('os')._exit(7)", r"rank 1 ended with status 7"),
    "hangs": ("__import__('time').sleep(60)", r"no answer from (rank|ranks) .* within 3 s"),
    "runs_out_of_memory": ("__import__('torch').empty(2**60)", r"rank 1: RuntimeError: .*(memory|allocate)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_rank_is_a_row_and_the_next_case_is_measured(tmp_path: Path, fault: str) -> None:
    statement, reason = FAULTS[fault]
    source = (Path(__file__).parents[2] / "accuracy" / "variant" / "ring.py").read_text()
    planted = source.replace("    running = rank.running(q)\n", f"    if rank.world.rank == 1: {statement}\n"
                             "    running = rank.running(q)\n")  # fmt: skip
    assert planted != source
    (tmp_path / "variant").mkdir()
    (tmp_path / "variant" / "faulty.py").write_text(planted)
    (tmp_path / "variant" / "faulty.yaml").write_text(
        "# @package variant.faulty\n# A planted fault\nforward: faulty\nbackward: faulty\nsharding: contiguous\n"
    )
    broken, healthy = plans_of("variant=[faulty,ring]", "world_size=2", folder=tmp_path)
    with contextlib.closing(Pool((2,), "gloo", timeout=3.0)) as ranks:
        pipeline = Pipeline("test", Cache(None, 0), ranks.run)
        row = pipeline.measure(broken.case).rows[0]
        assert row["status"] == table.FAILED
        assert re.search(reason, row["reason"]), row["reason"]
        assert pipeline.measure(healthy.case).rows[0]["status"] == table.OK


def test_ranks_killed_at_random_moments_leave_nothing_behind() -> None:
    """20 kills, spread over waiting, starting and computing; every case ends as a result or as a reason."""
    dice = random.Random(7)
    (planned,) = plans_of("variant=zigzag", "world_size=3")
    pipeline = Pipeline("test", Cache(None, 0))
    expected = rows_of(pipeline, planned.case)
    ranks = Pool((3,), "gloo", timeout=20.0)
    pipeline = Pipeline("test", Cache(None, 0), ranks.run)
    seen: set[int] = set()
    killed: list[int | None] = []
    ended = {table.OK: 0, table.FAILED: 0}

    def kill_one(delay: float, choice: int) -> None:
        time.sleep(delay)
        wait_until(lambda: ranks.workers, 20)  # between two pools there is nobody
        victims = [worker.process.pid for worker in list(ranks.workers)]
        victim = victims[choice % len(victims)] if victims else None
        if victim is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)

    for _ in range(20):
        killer = threading.Thread(target=kill_one, args=(dice.uniform(0.0, 0.3), dice.randrange(3)))
        killer.start()
        rows = rows_of(pipeline, planned.case)
        seen |= {worker.process.pid for worker in ranks.workers if worker.process.pid}
        while killer.is_alive() and not ranks.workers:
            rows_of(pipeline, planned.case)
        killer.join()
        status = rows["status"].iloc[0]
        ended[status] += 1
        if status == table.FAILED:
            assert "rank" in rows["reason"].iloc[0]
    with contextlib.suppress(WorldFailed):  # the last kill may have come after its case
        rows_of(pipeline, planned.case)
    pd.testing.assert_frame_equal(rows_of(pipeline, planned.case), expected, check_exact=True)
    seen |= {worker.process.pid for worker in ranks.workers if worker.process.pid}
    ranks.close()
    assert len(killed) >= 18  # a victim may be gone between choosing and killing
    assert ended[table.FAILED] >= len(killed) / 2  # a kill between cases is found by the next one
    assert not [pid for pid in seen if alive(pid)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_however_the_command_ends_no_rank_stays_and_what_was_measured_does(tmp_path: Path, how: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    words = ("world=processes", "variant=[ring,zigzag]", "world_size=[2]", f"seed={list(range(200))}", "report=false")
    process = subprocess.Popen(
        [sys.executable, "-m", "accuracy", *TINY, *words, f"output_dir={tmp_path / 'run'}"],
        env={**os.environ, "ACCURACY_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: len(list((tmp_path / "run" / "results").glob("[!.]*.parquet"))) >= 3, 90)
    assert len(marked(mark)) > 2
    process.send_signal(how)
    process.wait(timeout=60)
    wait_until(lambda: not marked(mark), 20)
    results = table.read_results(tmp_path / "run")
    assert results["case_id"].nunique() >= 3
    assert (results["status"] == table.OK).all()
