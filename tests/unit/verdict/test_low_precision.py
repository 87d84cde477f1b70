"""A healthy kernel in 8 or 4 bits, or a ring that keeps 16, is not called faulty on any inputs; a fault in it is.

`python -m tests.unit.verdict.low_precision_rates` counts with the same cases.
"""

from pathlib import Path

import pytest

from accuracy.core.quantisation import POLICIES
from accuracy.results.table import RESULTS_SCHEMA
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import EXCESS_ROUNDING, LOGIC
from accuracy.verdict.verdict import verdicts
from tests import planting
from tests.measuring import measure as measure_case
from tests.unit.fault import measure, rates
from tests.unit.verdict.synthetic import facts_of

QUANTISING = sorted(set(POLICIES) - {"none"})
VARIANTS = ("bpt_ring", "llama3", "ring", "split_kv", "ulysses", "zigzag")
INPUTS = ("attention_sink", "index_value", "one_gradient", "one_value", "outliers", "peaked", "uniform", "zero_query")
SMALL = ("also=null", "problem.seqlen=64", "problem.heads=2", "problem.heads_kv=1", "seed=0")


def alarms(policy: str, variant: str, inputs: str) -> rates.FalseAlarms:
    names, kernel = (variant, "single_device"), ("kernel=quantised", f"kernel.quantised.policy={policy}")
    words = f"inputs=[gaussian,{inputs}]", "dtype=[bfloat16,float64,float8_e4m3]"
    results = measure.results(names, *kernel, *SMALL, *words)
    return rates.false_alarms(names, verdicts(results), results)


@pytest.mark.stress(1)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", QUANTISING)
def test_a_healthy_policy_is_not_accused(policy: str, variant: str, inputs: str) -> None:
    found = alarms(policy, variant, inputs)
    assert found.combinations >= 20
    assert found.alarms.empty, found.alarms[["variant", "dtype", "tensor", "sentence"]].to_string()


def of_te_p2p(*words: str, folders: tuple[Path, ...] = ()) -> Facts:
    results = measure_case("problem.seqlen=256", "problem.heads=2", "problem.head_dim=16", "problem.batch=1",
                           "kernel=eager", "dtype=[bfloat16,float32]", *words, folders=folders)  # fmt: skip
    assert set(results["status"]) == {"ok"}
    return facts_of(results.reindex(columns=RESULTS_SCHEMA.names))


def test_what_transformer_engine_s_ring_keeps_in_16_bits_grows_and_is_no_bug_and_a_fault_in_it_is_one(
    tmp_path: Path,
) -> None:
    """The fault: keys of later ranks are merged into the front half of the queries, not the back."""
    found = of_te_p2p("variant=te_p2p", "world_size=[2,4,8,16]")
    assert (found.label, found.is_bug, found.dtypes) == (EXCESS_ROUNDING, False, ("bfloat16",))
    assert "out" in found.tensors
    assert found.growth["out"].low > 0
    to_the_front = (
        "lambda rank, source, length: [__import__('dataclasses').replace(block, query=slice(0, length // 2))"
        " if source > rank.world.rank else block for block in zigzag.blocks(rank, source, length)],"
    )
    planting.slip(tmp_path, "te_p2p", "zigzag.blocks,", to_the_front)
    found = of_te_p2p("variant=broken", "variant.broken.sharding=zigzag", "world_size=[2,4]", folders=(tmp_path,))
    assert (found.label, found.is_bug) == (LOGIC, True)
    assert "out" in found.tensors
