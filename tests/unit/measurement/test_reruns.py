import random
from pathlib import Path

import pytest
import torch

from accuracy.core.errors import WrongResult
from accuracy.measurement import reruns
from accuracy.verdict.verdict import verdicts
from tests import planting
from tests.measuring import configuration, measure
from tests.unit.fault.measure import results
from tests.unit.fault.planted import race
from tests.variants import schedules

EVERYTHING = ("reruns.repeat=2", "reruns.poison=true", "reruns.unwaited=true", "reruns.future=true")
COUNTS = ["repeats_differ", "poisoned", "unwaited", "future_differs"]


def test_a_healthy_variant_does_not_change() -> None:
    """Nor one whose mask is aligned at the top left."""
    rows = measure(f"variant=[{','.join(schedules())}]", "world_size=2", "kernel=[eager,torch_flash]",
                   "problem.batch=1", *EVERYTHING, "unusable=record")  # fmt: skip
    rows = rows[rows["status"] != "unsupported"]
    assert set(rows["status"]) == {"ok"}
    assert (rows.groupby("kernel")["variant"].nunique() >= 8).all()
    assert rows["kernel"].nunique() == 2
    assert (rows[COUNTS].fillna(0) == 0).all().all()
    assert rows[rows["tensor"].isin(("out", "lse", "dq"))][COUNTS].notna().all().all()
    assert rows[rows["tensor"] == "dk"]["future_differs"].isna().all()  # a key's gradient does come from later rows
    words = ("variant=single_device", "world_size=1", "problem.mask=causal_top_left", "problem.seqlen_q=[40,150]")
    found = measure(*words, "kernel=eager", "reruns.future=true")
    assert (found[found["rank"] == -1]["future_differs"].fillna(0) == 0).all()
    assert found["future_differs"].notna().any()
    assert configuration("variant=ring").observers == ()


RESULT = "return running.result(rank.dtype, rank.lse_dtype)"
JOIN = "for block in found:\n                rank.join"
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
        counts = found[found["rank"] == -1].set_index("tensor")[count]
        assert counts[tensor] > 0, count
        assert tensor != "dq" or counts["dk"] == 0


def test_a_race_is_counted_with_its_size_and_place_and_an_early_read_is_its_own_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One call in three, by a fixed draw. It is rank 0's, and as large as the tensor."""
    monkeypatch.setattr(race, "CHANCE", random.Random(0))
    found = results(["race_often"], *race.RARELY, "reruns.repeat=20")
    rows = found[found["tensor"] == "out"].set_index("rank")
    assert rows.loc[-1, "repeats_runs"] == rows.loc[0, "repeats_runs"] >= 1
    assert rows.loc[1, "repeats_differ"] == rows.loc[1, "repeats_size"] == 0
    assert rows.loc[-1, "repeats_size"] > 0.01
    said = verdicts(found).set_index("tensor").loc["out"]
    assert (said["label"], said["finding"], said["numbers"]["ranks"]) == ("nondeterministic", "race", "0")
    early = verdicts(results(["race_unwaited"], "also=null", "world_size=4", "dtype=float32", *EVERYTHING))
    early = early.set_index("tensor")
    assert (early.loc["out", "label"], early.loc["out", "finding"]) == ("invalid", "unwaited")


def test_ranks_that_count_by_themselves_count_a_run_once() -> None:
    """Rank 0's out changes in run 1, rank 1's in runs 1 and 2, in other elements; lse is not given."""
    first = torch.tensor([3.0, 4.0])
    ranks = []
    for changed in ({1: [9.0, 4.0]}, {1: [3.0, 5.0], 2: [1.0, 4.0]}):
        again = iter([torch.tensor(changed.get(run, [3.0, 4.0])) for run in range(4)])
        ranks += reruns.repeated([(first, None)], ([(each, None)] for each in again))
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


def test_a_tensor_that_an_earlier_call_left_is_named_and_one_of_zeros_is_none() -> None:
    one, two, zero = torch.randn(4), torch.randn(4), torch.zeros(4)
    reruns.check_other((one, zero, None), (two, zero, None))
    with pytest.raises(WrongResult, match="lse of other inputs"):
        reruns.check_other((one, two), (two, two.clone()))
