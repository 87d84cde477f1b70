"""A healthy kernel in 8 or 4 bits is not called faulty by any variant on any inputs; a fault on top of it is."""

import pandas as pd
import pytest

from accuracy.core.quantisation import POLICIES
from accuracy.verdict.label import LOGIC
from accuracy.verdict.verdict import verdicts
from tests.fault import measure, rates
from tests.fault.planted import PARTS

QUANTISING = sorted(set(POLICIES) - {"none"})
VARIANTS = ("bpt_ring", "llama3", "ring", "split_kv", "ulysses", "zigzag")
INPUTS = ("attention_sink", "index_value", "one_gradient", "one_value", "outliers", "peaked", "uniform", "zero_query")
DTYPES = "dtype=[bfloat16,float64,float8_e4m3]"
SMALL = ("also=null", "problem.seqlen=64", "problem.heads=2", "problem.heads_kv=1", "seed=0")


def judged(names: tuple[str, ...], policy: str, *words: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    kernel = ("kernel=quantised", f"kernel.quantised.policy={policy}")
    results = measure.results(names, *kernel, *SMALL, *words)
    return results, verdicts(results)


@pytest.mark.stress(8, "variant", "inputs")
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("policy", QUANTISING)
def test_a_healthy_policy_is_not_accused(policy: str, variant: str, inputs: str) -> None:
    results, found = judged((variant, "single_device"), policy, f"inputs=[gaussian,{inputs}]", DTYPES)
    alarms = rates.false_alarms([variant, "single_device"], found, results)
    assert alarms.combinations >= 20
    assert alarms.alarms.empty, alarms.alarms[["variant", "dtype", "tensor", "sentence"]].to_string()


@pytest.mark.stress(1)
@pytest.mark.parametrize("word", ["float8_e4m3", "float8_e5m2"])
def test_a_ring_whose_wires_have_8_bits_is_not_accused(word: str) -> None:
    words = ("kernel=eager", "inputs=[gaussian,outliers]", "dtype=[bfloat16,float32]", f"precision.wire={word}")
    results = measure.results(("ring", "zigzag"), *words, f"precision.gradient_wire={word}", *SMALL)
    alarms = rates.false_alarms(["ring", "zigzag"], verdicts(results), results)
    assert alarms.alarms.empty, alarms.alarms[["variant", "dtype", "tensor", "sentence"]].to_string()


FAULTS = ("shard_dkv_shifted", "shard_dq_reversed", "diagonal_not_causal", "heads_modulo_backward")


@pytest.mark.parametrize("policy", ["fp8_tensor", "sage"])
def test_a_fault_of_a_ring_on_low_precision_is_logic(policy: str) -> None:
    """Gradients of another rank's keys, keys seen too early, heads mixed up: several times the rounding of 4 bits.
    No finer dtype shows them better, as the kernel rounds alike in all."""
    words = ("inputs=gaussian", "dtype=[bfloat16,float32]", "world_size=4", "problem.heads=4", "problem.heads_kv=2")
    _, found = judged(FAULTS, policy, *words)
    for name in FAULTS:
        labels = found[found["variant"] == name].groupby("tensor")["label"].agg(set)
        wrong = [tensor for tensor in PARTS[name].expected if tensor != "lse"]
        assert any(LOGIC in labels[tensor] for tensor in wrong), (name, labels.to_dict())
