"""Reruns change nothing in a healthy variant, and see what they are for in a broken one."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy.core.case import Reruns
from accuracy.core.paths import PACKAGE
from accuracy.runtime import device
from tests.measuring import configuration, measure
from tests.variants import schedules

EVERYTHING = ("reruns.repeat=2", "reruns.poison=true", "reruns.future=true")
UNUSABLE = "unusable=record"  # by the schedules of one device, and of a kernel that is not here
COUNTS = ["repeats_differ", "poisoned", "future_differs"]


def plant(folder: Path, before: str, after: str, schedule: str = "ring") -> list[Path]:
    source = (PACKAGE / "variant" / f"{schedule}.py").read_text()
    assert before in source
    (folder / "variant").mkdir()
    (folder / "variant" / "broken.py").write_text(
        "import ctypes\nimport random\nimport torch\n" + source.replace(before, after)
    )
    (folder / "variant" / "broken.yaml").write_text(
        "# @package variant.broken\n# planted\nforward: broken\nbackward: broken\nsharding: contiguous\n"
    )
    return [folder]


def counts(rows: pd.DataFrame, tensor: str) -> dict[str, float]:
    whole = rows[(rows["rank"] == -1) & (rows["tensor"] == tensor)]
    return whole[COUNTS].iloc[0].to_dict()


@pytest.mark.parametrize("kernel", ["eager", "torch_flash"])
def test_a_healthy_variant_does_not_change(kernel: str) -> None:
    rows = measure(f"variant=[{','.join(schedules())}]", "world_size=2", f"kernel={kernel}", *EVERYTHING, UNUSABLE)
    rows = rows[rows["status"] != "unsupported"]
    assert set(rows["status"]) == {"ok"}
    assert rows["variant"].nunique() >= 8
    assert (rows[COUNTS].fillna(0) == 0).all().all()
    assert rows[rows["tensor"].isin(("out", "lse", "dq"))][COUNTS].notna().all().all()
    assert rows[rows["tensor"] == "dk"]["future_differs"].isna().all()  # a key's gradient does come from later rows


def test_without_reruns_there_are_no_counts_and_ids_are_those_of_before() -> None:
    rows = measure("variant=ring", "world_size=2")
    assert not {name for name in COUNTS if name in rows and rows[name].notna().any()}
    first, second = (measure("variant=ring", "world_size=2", *words)["case_id"].iloc[0] for words in ((), EVERYTHING))
    assert first != second
    assert configuration("variant=ring").reruns == Reruns()


def test_memory_that_was_never_written_shows(tmp_path: Path) -> None:
    end = "\n\n    async def backward"
    unwritten = "torch.where(torch.empty_like(out).isnan(), torch.nan, out)"
    folders = plant(tmp_path, f"return out, lse{end}", f"return {unwritten}, lse{end}")
    found = counts(measure("variant=broken", "world_size=2", *EVERYTHING, folders=folders), "out")
    assert found["poisoned"] > 0


def test_a_leak_from_the_future_shows(tmp_path: Path) -> None:
    folders = plant(
        tmp_path, "self.blocks(rank, source, q.shape[1])",
        "[Block(each.query, each.key, causal=False) for each in self.blocks(rank, source, q.shape[1])]",
    )  # fmt: skip
    found = counts(measure("variant=broken", "world_size=2", *EVERYTHING, folders=folders), "out")
    assert found["future_differs"] > 0


def test_runs_that_differ_show(tmp_path: Path) -> None:
    folders = plant(tmp_path, "dq.add(block.query, dq_block)", "dq.add(block.query, dq_block * random.random())")
    found = measure("variant=broken", "world_size=2", *EVERYTHING, folders=folders)
    assert counts(found, "dq")["repeats_differ"] > 0
    assert counts(found, "dk")["repeats_differ"] == 0


def test_a_write_beside_the_inputs_is_refused(tmp_path: Path) -> None:
    """As a kernel would, behind torch's back; only where the buffer is known to have workspace."""
    beside = "q.storage_offset() == 4096 and ctypes.memset(q.data_ptr() + 2 * q.numel(), 0, 2)"
    folders = plant(
        tmp_path, "        running = rank.running(q)\n", f"        {beside}\n        running = rank.running(q)\n"
    )
    rows = measure("variant=broken", "world_size=2", *EVERYTHING, folders=folders)
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
