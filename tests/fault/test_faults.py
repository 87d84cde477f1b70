"""Every planted fault is named, with the label and tensors of its report, and healthy variants are not."""

import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.core.paths import PACKAGE
from accuracy.results import table
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.label import LABELS
from accuracy.verdict.verdict import verdicts
from tests.fault import healthy, measure, rates
from tests.fault.__main__ import OF_FAULTS
from tests.fault.planted import PARTS

pytestmark = pytest.mark.xdist_group("selfcheck")  # the table is measured once

CAUSES = {  # what must be proven of each planted fault, in words of the sentence; None: described, no cause
    "accumulator_alias": "a sum that the next hop's block overwrites",
    "atomic_dq": None,
    "bf16_grad_sum": "the sum of dk is, after each hop, cast to bfloat16",
    "bf16_partials": None,
    "both_empty": None,
    "bpt_stale_buffer": "a buffer that is not cleared between hops",
    "causal_bottom_right": "a query sees all keys up to its local position",
    "diagonal_not_causal": "rows see the block of their own rank in full, not causally",
    "dropped_key": "the last key of rank 0 is never seen by other ranks",
    "finite_mask_sentinel": "lse is 0 on rank 0",
    "gqa_head_sum": None,
    "hard_coded_bf16_dq": "dq is cast to bfloat16",
    "lse_base_2": "a block's lse is to base 2",
    "lse_other_layout": "a block's lse is of (B, S, H) read as (B, H, S)",
    "lse_padded": "the partials are right and are merged with wrong weights",
    "masked_first_partial": None,
    "merge_overflow": None,
    "normaliser_bias": None,
    "plus_inf_empty_row": "a block without visible keys is merged with out = 0 and lse = +inf",
    "tied_maxima_bias": None,
    "unwritten_output": None,
    "unzeroed_padding": None,
    "wrong_scale_forward": "the softmax scale is 3.33333 (its inverse), not 0.3",
}


RIGHT_IN_FLOAT64 = "accumulator_alias"  # its cause is proven in float32, that of all others in float64
Said = dict[str, Any]


def judged(*names: str) -> tuple[measure.Measured, pd.DataFrame]:
    """Traces name steps, not verdicts; one dtype proves a cause."""
    dtype = "float32" if names == (RIGHT_IN_FLOAT64,) else "float64"
    found = measure.measured(names, "~also.trace", f"also.explain.dtype={dtype}")
    return found, verdicts(found.results)


def said(found: measure.Measured, judged: pd.DataFrame) -> Said:
    steps = table.STEPS_SCHEMA.empty_table().to_pandas()
    return {each.variant: each for each in diagnoses(judged, found.results, steps, found.hypotheses)}


def healthy_variants(stress: bool) -> list[str]:
    """All of them, or a seeded third."""
    every = measure.healthy()
    return every if stress else random.Random(0).sample(every, len(every) // 3)


def test_every_fault_states_what_it_must_be_called() -> None:
    assert set(CAUSES) == {name for name, fault in PARTS.items() if fault.label}
    assert {fault.label for fault in PARTS.values()} <= {"", *LABELS}
    assert all(fault.wrong for fault in PARTS.values())


@pytest.mark.stress(3)
@pytest.mark.parametrize("name", sorted(CAUSES))
def test_a_planted_fault_is_named_and_its_cause_is_proven_or_none_is_named(name: str) -> None:
    found = judged(name)
    named = rates.detection(name, PARTS[name].expected, found[1])
    assert not named.missed, named
    sentence, _, _ = said(*found)[name].sentence.partition(" Not tried: ")
    if CAUSES[name] is not None:
        assert CAUSES[name] in sentence
    else:
        told = re.search("no cause was (proven|tried)|merely rounds|from run to run", sentence)
        assert told or ": " not in sentence, sentence


@pytest.mark.stress(4)
@pytest.mark.parametrize("name", [name for name in PARTS if name not in CAUSES])
def test_a_fault_is_named_in_the_tensors_that_are_wrong_and_in_no_other(name: str) -> None:
    judged = verdicts(measure.results([name], *OF_FAULTS))
    found = rates.detection(name, PARTS[name].expected, judged, PARTS[name].right)
    assert found.caught, found


@pytest.mark.stress(1)
@pytest.mark.parametrize("shape", healthy.SHAPES)
def test_healthy_variants_are_not_accused_in_any_shape(shape: str, stress: bool) -> None:
    less = () if stress or "~also" in healthy.SHAPES[shape] else ("~also.explain", "~also.seeds")
    names = healthy_variants(stress)
    measured = measure.results(names, *healthy.overrides(shape), *less)
    found = rates.false_alarms(names, verdicts(measured), measured)
    assert found.alarms.empty, found.alarms["sentence"].to_list()
    assert found.combinations >= 100


def test_healthy_variants_are_not_called_faulty_and_have_no_hypotheses(stress: bool) -> None:
    names = healthy_variants(stress)
    measured, found_verdicts = judged(*names)
    found = rates.false_alarms(names, found_verdicts, measured.results)
    assert found.alarms.empty, found.alarms[
        ["variant", "dtype", "world_size", "tensor", "label", "sentence"]
    ].to_string()
    assert found.combinations >= 300
    assert measured.hypotheses.empty
    assert any("merely rounds" in each.sentence for each in said(measured, found_verdicts).values())


def test_healthy_rings_are_not_called_faulty_where_their_partials_cancel() -> None:
    """On attention sinks and outliers rings round far more than single device does. Condition numbers say so: with
    others, as if nothing cancelled, rings would be alarmed, and where there are none nobody is."""
    rings = ["ring", "zigzag", "striped", "llama3_ring"]
    inputs = ("inputs=[gaussian,attention_sink,outliers]", "conditions=true", "also=null")
    found = measure.results(rings, *inputs, "dtype=[bfloat16,float16,float32]", "world_size=4", "kernel=torch_math")
    longer = measure.results(rings, *inputs, "dtype=[bfloat16,float16]", "world_size=8", "problem.seqlen=480")

    def alarmed(table: pd.DataFrame) -> int:
        return rates.false_alarms(rings, verdicts(table), table).alarmed

    assert alarmed(found) == alarmed(longer) == 0
    assert alarmed(found.assign(condition_sum=1.0, condition_rounding=1.0)) > 10
    assert alarmed(found.assign(condition_sum=None, condition_rounding=None)) == 0


def test_the_seed_s_own_case_is_told_in_one_sentence_and_the_rates_can_fail() -> None:
    """A fault that is not missed as what it is, is missed as anything else, and would be a false alarm if healthy."""
    measured, found = judged("bpt_stale_buffer")
    sentence = said(measured, found)["bpt_stale_buffer"].sentence
    for words in ("dq, dk and dv are wrong at any precision", "a buffer that is not cleared between hops"):
        assert words in sentence
    assert rates.detection("bpt_stale_buffer", {"dq": "rounding"}, found).missed == ("dq",)
    alarmed = rates.false_alarms(["bpt_stale_buffer"], found, measured.results)
    assert 0 < alarmed.alarmed <= alarmed.combinations


def test_a_fault_of_ones_own_is_judged_the_same_way(tmp_path: Path) -> None:
    """The label of faults.md is not read from the fault: a copy under another name gets the same."""
    results = measure.results(["dropped_key"], "also={}", "dtype=[bfloat16,float64]")
    renamed = verdicts(results.assign(variant="x"))
    assert "logic" in set(renamed["label"])


def test_the_published_rates_are_of_the_faults_that_are_planted() -> None:
    rates = (PACKAGE.parent / "reports" / "selfcheck" / "rates.txt").read_text()
    assert set(re.findall(r"^named\s+(\w+):", rates, re.MULTILINE)) == set(PARTS)
