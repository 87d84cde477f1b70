import pandas as pd
import pytest
import torch

from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.simulate.program import simulate
from tests.measuring import configuration, measure

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
    whole, split = (simulate(each.case, [pipeline.targets(each.case).given.tensors]).results[0] for each in plans)
    assert all(torch.equal(a, b) for a, b in zip(whole[:2], split[:2], strict=True))
