"""A case that never ends is a failed row with the reason, and the run goes on, in whatever world it is."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import accuracy
from accuracy.execute import watch
from accuracy.execute.plan import plan
from accuracy.results import table
from tests import planting, processes
from tests.command_line import SHORT
from tests.foreign.functions import eager_out
from tests.measuring import TINY, configuration

SMALL = {"seqlen": 32, "heads": 2, "heads_kv": 2, "head_dim": 8, "device": "cpu", "dtype": "float32"}


def case_of(*words: str):
    (planned,) = plan(configuration(*TINY, "variant=ring", "world_size=2", *words), None)
    return planned.case


def test_every_case_has_a_limit_that_no_healthy_one_reaches_and_a_given_one_counts() -> None:
    small, large = case_of("device=cpu"), case_of("device=cpu", "problem.seqlen=65536", "reruns.repeat=10")
    assert 3600 < watch.limit(small, float("inf")) < 3601
    pairs = 2 * 4 * 65536**2  # batch, heads, queries by keys; 14 operations a pair and dimension, 8 dimensions
    assert watch.limit(large, float("inf")) == 3600 + 13 * pairs * 14 * 8 / 1e8
    assert watch.limit(replace(large, device="cuda"), float("inf")) < watch.limit(large, float("inf"))
    assert watch.limit(large, 60.0) == 60


def sleeps(q, k, v, **how):
    time.sleep(600)


def catches(q, k, v, **how):
    while True:
        with suppress(Exception):
            time.sleep(600)


def test_a_function_that_never_returns_costs_its_case_and_the_caller_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: no other one is there to end it. The last case is later than the interrupts."""
    monkeypatch.setattr(watch, "limit", lambda case, seconds: 0.3 if case.variant.name != "eager_out" else 600.0)
    rows = accuracy.measure([sleeps, catches, eager_out], case_seconds=0.3, **SMALL)
    failed = rows[rows["status"] == table.FAILED].set_index("variant")["reason"]
    assert sorted(failed.index) == ["catches", "sleeps"]
    for name, reason in failed.items():
        assert reason.startswith("took longer than case_seconds=0.3 (")
        assert reason.endswith(f"in {name})")
    assert set(rows.loc[(rows["variant"] == "eager_out") & (rows["tensor"] != "lse"), "status"]) == {table.OK}


STUCK = """
lock = ctypes.create_string_buffer(64)
def stuck(library):
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)  # waits for ever, whatever signal comes
"""
ENDINGS = {  # what a variant does, and the end of its reason
    "stuck": ("stuck(ctypes.CDLL(None))", "and could not be interrupted"),
    "holds": ("stuck(ctypes.PyDLL(None))", "and could not be ended"),  # no thread of Python runs meanwhile
    "crashes": ("ctypes.string_at(0)", "the process that measured it was killed by signal 11 (Segmentation fault)"),
    "leaves": ("os._exit(7)", "the process that measured it ended with status 7"),
}
COMMAND = """
import sys
from accuracy.cli import application
from accuracy.cli.run import attended
from accuracy.execute import measure, watch  # torch is imported here once, not by each process that goes on
watch.GRACE_SECONDS = 1
watch.limit = lambda case, seconds: 1.0 if case.variant.name in ("stuck", "holds") else 600.0
sys.argv = {words}
attended()
"""


def test_what_cannot_be_interrupted_or_ends_its_process_is_a_row_too_and_the_command_goes_on(tmp_path: Path) -> None:
    for name, (statement, _) in ENDINGS.items():
        body = f"    async def forward(self, rank, q, k, v):\n        {statement}"
        variant = planting.RING.removeprefix(planting.HEAD).format(body=body)
        planting.variant(tmp_path / "parts", name, planting.HEAD + STUCK + variant)
    chosen = f"variant=[{','.join(ENDINGS)},ring]"
    words = ["accuracy", "--config-dir=parts", *SHORT, chosen, "workers=1", "output_dir=run"]
    started = processes.start("-c", COMMAND.format(words=words), folder=tmp_path, OMP_NUM_THREADS="1")
    out, err = started.communicate(timeout=300)
    assert started.returncode == 0, err
    assert err.count("; another process goes on") == len(ENDINGS)
    assert out.count("1 measured, 0 unsupported") == 1
    rows = table.read_results(tmp_path / "run").drop_duplicates("variant").set_index("variant")
    assert rows["status"].to_dict() == {**dict.fromkeys(ENDINGS, table.FAILED), "ring": table.OK}
    for name, (_, told) in ENDINGS.items():
        assert rows.loc[name, "reason"].endswith(told), name
