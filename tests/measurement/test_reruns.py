import random
from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy.core.case import Reruns
from accuracy.measurement import reruns
from accuracy.results.table import read_side
from accuracy.runtime import device
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.verdict import verdicts
from tests import planting
from tests.fault.measure import measured, results
from tests.fault.planted import race
from tests.measuring import configuration, measure
from tests.variants import schedules

EVERYTHING = ("reruns.repeat=2", "reruns.poison=true", "reruns.unwaited=true", "reruns.future=true")
UNUSABLE = "unusable=record"  # by the schedules of one device, and of a kernel that is not here
COUNTS = ["repeats_differ", "poisoned", "unwaited", "future_differs"]


def counts(rows: pd.DataFrame, tensor: str) -> dict[str, float]:
    whole = rows[(rows["rank"] == -1) & (rows["tensor"] == tensor)]
    return whole[COUNTS].iloc[0].to_dict()


def test_a_healthy_variant_does_not_change() -> None:
    rows = measure(f"variant=[{','.join(schedules())}]", "world_size=2", "kernel=[eager,torch_flash]", *EVERYTHING,
                   UNUSABLE)  # fmt: skip
    rows = rows[rows["status"] != "unsupported"]
    assert set(rows["status"]) == {"ok"}
    assert (rows.groupby("kernel")["variant"].nunique() >= 8).all()
    assert rows["kernel"].nunique() == 2
    assert (rows[COUNTS].fillna(0) == 0).all().all()
    assert rows[rows["tensor"].isin(("out", "lse", "dq"))][COUNTS].notna().all().all()
    assert rows[rows["tensor"] == "dk"]["future_differs"].isna().all()  # a key's gradient does come from later rows


def test_without_reruns_there_are_no_counts() -> None:
    rows = measure("variant=ring", "world_size=2")
    assert not {name for name in COUNTS if name in rows and rows[name].notna().any()}
    assert configuration("variant=ring").reruns == Reruns()


RESULT = "return running.result(rank.dtype, rank.lse_dtype)"
JOIN = "for block in found:\n                met.join"
SHOWN = {  # what stands in the ring, what is planted there, tensor and count that must show it
    "memory that was never written": (
        RESULT, RESULT.replace("return", "out, lse =")
        + "\n        return torch.where(torch.empty_like(out).isnan(), torch.nan, out), lse",
        "out", "poisoned",
    ),
    "a leak from the future": (
        JOIN, JOIN.replace("found", "[Block(each.query, each.key, causal=False) for each in found]"),
        "out", "future_differs",
    ),
    "runs that differ": (
        "dq.add(block.query, dq_block)", "dq.add(block.query, dq_block * random.random())", "dq", "repeats_differ",
    ),
}  # fmt: skip


def test_a_planted_fault_shows_in_its_count(tmp_path: Path) -> None:
    for number, (before, after, tensor, count) in enumerate(SHOWN.values()):
        folder = planting.slip(tmp_path / str(number), "ring", before, after)
        found = measure("variant=broken", "world_size=2", *EVERYTHING, folders=[folder])
        assert counts(found, tensor)[count] > 0, count
        assert tensor != "dq" or counts(found, "dk")[count] == 0


def test_a_rare_race_is_counted_with_its_size_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call in 200, of 920: seen with 99%, here by a fixed draw. It is rank 0's, and as large as the tensor."""
    monkeypatch.setattr(race, "CHANCE", random.Random(0))
    found = results(["race_rare"])
    rows = found[found["tensor"] == "out"].set_index("rank")
    assert rows.loc[-1, "repeats_runs"] == rows.loc[0, "repeats_runs"] >= 1
    assert rows.loc[1, "repeats_differ"] == rows.loc[1, "repeats_size"] == 0
    assert rows.loc[-1, "repeats_size"] > 0.01
    said = verdicts(found).set_index("tensor").loc["out"]
    assert said["label"] == "nondeterministic"
    assert (said["finding"], said["numbers"]["ranks"]) == ("race", "0")


def test_a_receive_buffer_that_is_read_too_early_is_named() -> None:
    for fault, tensors, right in (
        ("race_unwaited", ("out", "lse"), ()), ("race_unwaited_backward", ("dq", "dk", "dv"), ("out", "lse")),
    ):  # fmt: skip
        found = measured([fault], "~also.trace")
        said = verdicts(found.results)
        ranks = said[(said["world_size"] == 4) & (said["seqlen"] == 144)].set_index("tensor")["label"]
        assert set(ranks.loc[list(tensors)]) == {"invalid"}
        assert set(ranks.loc[list(right)]) <= {"rounding"}
        (facts,) = diagnoses(said, found.results, read_side(Path("none"), "steps"), found.hypotheses)
        assert (facts.finding, facts.tensors[: len(tensors)]) == ("unwaited", tensors)
        assert facts.inputs == ()
        assert "poisoned" not in facts.numbers


def test_ranks_that_count_by_themselves_count_a_run_once() -> None:
    """Rank 0's out changes in run 1, rank 1's in runs 1 and 2, in other elements; lse is not given."""
    first = torch.tensor([3.0, 4.0])
    ranks = []
    for changed in ({1: [9.0, 4.0]}, {1: [3.0, 5.0], 2: [1.0, 4.0]}):
        again = iter([torch.tensor(changed.get(run, [3.0, 4.0])) for run in range(4)])
        ranks.append(reruns.repeat((first, None), lambda again=again: (next(again), None), 4))  # type: ignore[misc]
    found = reruns.columns(ranks)
    assert list(found) == ["out"]
    assert found["out"]["repeats_differ"] == [1, 2, 3]
    assert found["out"]["repeats_runs"] == [1, 2, 2]
    assert found["out"]["repeats_size"] == pytest.approx([6 / 12.5**0.5, 2 / 12.5**0.5, 6 / 12.5**0.5])


def test_a_write_beside_the_inputs_is_refused(tmp_path: Path) -> None:
    """As a kernel would, behind torch's back; only where the buffer is known to have workspace."""
    beside = "q.storage_offset() == 4096 and ctypes.memset(q.data_ptr() + 2 * q.numel(), 0, 2)"
    line = "        running = rank.running(q)\n"
    folder = planting.slip(tmp_path, "ring", line, f"        {beside}\n{line}")
    rows = measure("variant=broken", "world_size=2", *EVERYTHING, folders=[folder])
    assert set(rows["status"]) == {"failed"}
    assert "WrongResult: rank 0 wrote next to its inputs" in rows["reason"].iloc[0]


def test_poison_is_only_in_the_body() -> None:
    with device.poisoned(True):
        assert torch.empty(8).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    with device.poisoned(False):
        assert not torch.are_deterministic_algorithms_enabled()


def test_a_mask_aligned_at_the_top_left_leaks_nothing() -> None:
    words = ("variant=single_device", "world_size=1", "problem.mask=causal_top_left", "problem.seqlen_q=[40,150]")
    found = measure(*words, "kernel=eager", "reruns.future=true")
    assert (found[found["rank"] == -1]["future_differs"].fillna(0) == 0).all()
    assert found["future_differs"].notna().any()
