"""The table's parts that need no GPU: what the profiler's spans add up to, and the lines themselves."""

import pytest

from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from bench import device_time, schedule
from bench.device_time import DeviceTime
from tests.measuring import TINY

SPANS = [("void flash_bwd<2>", 0.002, 0.004), ("add", 0.0, 0.001), ("add", 0.003, 0.006)]


def test_what_overlaps_is_busy_once_and_launched_twice() -> None:
    found = DeviceTime.of(SPANS)
    assert found.busy == pytest.approx(0.005)
    assert found.part(attention=True) == (pytest.approx(0.002), 1)
    assert found.part(attention=False) == (pytest.approx(0.004), 2)
    assert [line.split()[-1] for line in found.top(9)] == ["add", "flash_bwd<2>"]


def test_the_gpu_s_table_says_gaps_and_the_ratio() -> None:
    """A case of 20 ms of which the GPU works 5, beside one of 4."""
    ring = schedule.Profile(0.020, host=0.019, in_calls=0.01, calls=7, gpu=DeviceTime.of(SPANS))
    _, row = schedule.gpu_table({"ring": ring}, schedule.Profile(0.004))
    assert " ".join(row.split()) == "ring 20.0 5.00 <= 3 2.0 ( 1) 4.0 ( 2) 15.0 19.0 10.0 7 equal"


def test_a_table_has_a_line_for_each_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "PROBLEM", {"cpu": TINY})
    found = [line.split(" ")[0] for line in schedule.lines("cpu", ["ring"])]
    assert found == ["schedules", "variant", "single_device", "ring", ""]


def test_a_case_s_host_time_holds_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("variant=ring", "world_size=3", "dtype=bfloat16", *TINY)
    (planned,) = schedule.plan(schedule.configuration(*words), None)
    shards = schedule.shards_of(Pipeline("test", Cache(None, 0.0)), planned.case)
    monkeypatch.setattr(device_time, "_spans", lambda events: SPANS)
    took = schedule.on_gpu(planned.case, shards)
    assert took.gpu is not None
    assert took.gpu.busy == pytest.approx(0.005)
    assert took.calls >= 6
    assert took.in_calls > 0
    assert any("ring.py" in line for line in schedule.most("ring", planned.case, shards, took))
