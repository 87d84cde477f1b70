"""Which case a free worker measures next, how many workers there are, and how long a case may take."""

import itertools
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from accuracy.config.read import PROCESSORS
from accuracy.core.case import Case
from accuracy.execute import pool
from accuracy.execute import worker as worker_process
from accuracy.execute.dispatch import CONTEXT_BYTES, WORKER_BYTES, fitting_workers, work
from accuracy.execute.plan import plan
from accuracy.execute.pool import Queue
from accuracy.execute.settle import settled, side_by_side
from accuracy.execute.worker import Work
from accuracy.measurement.memory import bytes_needed
from accuracy.measurement.observe import shared
from accuracy.results import table
from accuracy.runtime import device
from accuracy.runtime.changes import Changes
from tests import measuring
from tests.measuring import TINY, configuration

ONE = ("variant=ring", "world_size=2", "dtype=float32", "seed=0")


def cases(*words: str) -> list[Case]:
    return measuring.cases(*TINY, "device=cpu", "variant=[ring,zigzag]", *words)


def test_a_worker_keeps_its_references_and_the_largest_cases_come_first() -> None:
    given = cases("seed=[0,1,2,3]", "world_size=[1,2,4]")
    schedule, at = Queue(given), list[object]()
    for _ in range(len(given) // 2):
        at += [shared(case) for worker in (0, 1) if (case := schedule.take(worker)) is not None]
    for worker in (0, 1):
        assert sum(before != after for before, after in itertools.pairwise(at[worker::2])) == 1
    assert len({*at[::2]} & {*at[1::2]}) == 0
    first = Queue(cases("problem.seqlen=[1024,2048]", "world_size=[1,2,4]")).take(0)
    assert (first.problem.seqlen, first.world_size) == (2048, 4)


def test_there_are_no_more_workers_than_cases_or_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of one GPU share its memory: of two GPUs each holds its own case, and several where they fit."""
    given = replace(configuration(*TINY, "device=cpu", "world_size=[1,2,4]", "variant=ring"), workers=8)
    plans = plan(given, None)
    most = max(bytes_needed(each.case) for each in plans) + WORKER_BYTES
    assert fitting_workers(given, plans, None) == 3
    assert fitting_workers(given, plans, 2 * most) == 2
    assert fitting_workers(given, plans, most // 2) == 1  # the plan has refused what does not fit at all
    assert fitting_workers(replace(given, workers=1), plans, None) == 1
    monkeypatch.setattr(device, "alike", lambda: (0, 1))
    of_cpu = configuration(*TINY, "device=cpu", "world_size=[1,2,4,8]", "seed=[0,1]", "variant=ring")
    given = replace(of_cpu, device="cuda", workers=8)
    plans = plan(given, None)
    most = max(bytes_needed(each.case) for each in plans) + CONTEXT_BYTES
    assert fitting_workers(given, plans, most // 2) == 2
    assert fitting_workers(given, plans, 3 * most) == 6
    assert work(given, Path("unused"), 6).gpus == [0, 1, 0, 1, 0, 1]
    assert settled(replace(of_cpu, device="auto", workers=PROCESSORS)).workers == settled(of_cpu).workers


def test_a_gpu_has_a_worker_for_each_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 to 10 of them on each."""
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    for seeds, gpus, workers in ((1, 1, 4), (3, 1, 6), (9, 1, 10), (3, 2, 8), (9, 2, 18)):
        given = configuration(*TINY, f"seed={[*range(seeds)]}", "dtype=[float32,float16]")
        assert side_by_side(gpus, given) == workers


def test_a_case_that_shares_its_gpu_has_no_time(tmp_path: Path) -> None:
    (case,) = cases(*ONE)
    for gpus, known in (((0, 0), False), ((0, 1), True)):
        given = Work(measuring.pipeline(), tmp_path, gpus, 1)
        assert worker_process._measured(given, case, None, Changes(), tmp_path) == (table.OK, True)
        assert table.read_results(tmp_path)["seconds"].notna().any() == known


def test_every_case_has_a_limit_that_no_healthy_one_reaches_and_a_given_one_counts() -> None:
    allowed = worker_process.seconds_allowed
    (small,), (large,) = cases(*ONE), cases(*ONE, "reruns.repeat=10", "problem.seqlen=65536")
    assert 3600 < allowed(small, math.inf) < 3601
    pairs = 2 * 4 * 65536**2  # batch, heads, queries by keys; 14 operations a pair and dimension, 8 dimensions
    assert allowed(large, math.inf) == 3600 + 13 * pairs * 14 * 8 / 1e8
    assert allowed(replace(large, device="cuda"), math.inf) < allowed(large, math.inf)
    assert allowed(large, 60.0) == 60


def test_a_worker_that_has_answered_is_not_killed_for_the_time_limit_of_the_case_before() -> None:
    """Its next case would be said to have taken too long."""
    each = pool._Worker.__new__(pool._Worker)
    killed: list[bool] = []
    each.process = SimpleNamespace(kill=lambda: killed.append(True))
    each.deadline, each.case, each.late = 0.0, None, False
    for each.ready in (True, False):
        each.kill_if_late()
        assert bool(killed) is not each.ready
