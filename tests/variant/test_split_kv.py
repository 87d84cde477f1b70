"""Split-KV decoding: any number of parts is the same answer, on few queries and many, and slips in it are seen."""

from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.simulate.program import simulate
from accuracy.variant.split_kv import blocks
from tests.measuring import configuration, measure
from tests.variant.test_mutations import plant

SPLITS = "variant.split_kv.splits=[1,2,5,7,96]"  # 5 and 7 do not divide 96 keys; 96: a key a part
QUERIES = "problem.seqlen_q=[1,5,null]"


def run(*words: str) -> pd.DataFrame:
    results = measure("variant=split_kv", "world_size=1", *words)
    assert not (results["status"] == "failed").any(), results["reason"].unique()
    return results


@pytest.mark.stress(4, "kernel", "heads_kv", "mask")
@pytest.mark.parametrize("kernel", ["eager", "torch_flash"])
@pytest.mark.parametrize("heads_kv", [4, 2, 1])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_in_float64_every_number_of_parts_is_the_reference(mask: str, heads_kv: int, kernel: str) -> None:
    """1e-12 is 10^4 units of float64 and 10^-7 of what a lost key would cost."""
    words = (f"problem.mask={mask}", f"problem.heads_kv={heads_kv}", f"kernel={kernel}", "device=cpu")
    results = run(SPLITS, QUERIES, "dtype=float64", *words)
    measured = results[results["status"] == "ok"]
    assert set(measured["tensor"]) == {"out", "lse", "delta"}
    assert measured["case_id"].nunique() == 15
    assert measured["error_rel"].max() < 1e-12


def test_gradients_are_rows_that_say_why_there_are_none() -> None:
    results = run("problem.seqlen_q=1")
    unsupported = results[results["status"] == "unsupported"]
    assert dict(zip(unsupported["tensor"], unsupported["reason"], strict=True)) == {
        name: f"the variant returns no {name}" for name in ("dq", "dk", "dv")
    }
    assert (results["seqlen_q"] == 1).all()


def test_one_part_is_single_device_bit_for_bit() -> None:
    words = ("problem.seqlen_q=5", "variant=[single_device,split_kv]", "variant.split_kv.splits=1", "world_size=1")
    plans = plan(configuration("problem.seqlen=96", *words), None)
    pipeline = Pipeline("test", Cache(None, 0.0))
    whole, split = (simulate(each.case, [pipeline.targets(each.case).inputs.tensors]).results[0] for each in plans)
    assert all(torch.equal(a, b) for a, b in zip(whole[:2], split[:2], strict=True))


@pytest.mark.parametrize(("splits", "queries", "keys"), [(1, 1, 7), (3, 1, 7), (7, 7, 7), (4, 5, 18), (3, 18, 18)])
def test_every_query_sees_every_key_up_to_its_own_position_once(splits: int, queries: int, keys: int) -> None:
    seen = torch.zeros(queries, keys, dtype=torch.int64)
    for block in blocks(splits, queries, keys, causal=True):
        part = seen[block.query, block.key]
        rows, width = part.shape
        part += torch.ones(rows, width, dtype=torch.int64).tril(width - rows) if block.causal else 1
    assert torch.equal(seen, torch.ones(queries, keys, dtype=torch.int64).tril(keys - queries))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(part + 1) * keys // splits", "(part + 1) * keys // splits - 1"),
        ("query_offset = keys - queries", "query_offset = keys - queries - 1"),
        ("block.shifted(query_offset, 0)", "block.shifted(ahead - 1, 0)"),
        ("block.shifted(query_offset, 0)", "Block(block.shifted(query_offset, 0).query, block.key, False)"),
        ("range(splits)", "range(splits - 1)"),
        ("rank.join(running, block, q, k, v)", "rank.join(running, block, q, k, k)"),
    ],
)
def test_a_slip_is_seen(tmp_path: Path, before: str, after: str) -> None:
    """Seen: an error above 1e-6 where the healthy schedule is held to 1e-12, or a failed row."""
    plant(tmp_path, "split_kv", before, after)
    results = measure("variant=broken", "world_size=1", "dtype=float64", "problem.seqlen_q=30", folders=[tmp_path])
    if (results["status"] == "failed").all():
        return
    whole = results[results["rank"] == -1].set_index("tensor")
    assert whole.loc["out", "error_rel"] > 1e-6
