"""Every planted fault is named, with the label and tensors of its report, and healthy variants are not."""

import random
import re

import pandas as pd
import pytest

from accuracy.core.paths import PACKAGE
from accuracy.results import table
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.label import LABELS, ROUNDING
from accuracy.verdict.verdict import verdicts
from tests.unit.fault import healthy, low_precision, measure, rates
from tests.unit.fault.planted import PARTS
from tests.unit.verdict import synthetic

CAUSES = {  # what must be proven of each fault of a report, in words of the sentence; None: described, no cause
    "accumulator_alias": "a sum that the next hop's block overwrites",
    "bf16_grad_sum": "the sum of dk is, after each hop, cast to bfloat16",
    "bpt_stale_buffer": "a buffer that is not cleared between hops",
    "causal_bottom_right": "a query sees all keys up to its local position",
    "diagonal_not_causal": "rows see the block of their own rank in full, not causally",
    "dropped_key": "the last key of rank 0 is never seen by other ranks",
    "finite_mask_sentinel": "lse is 0 on rank 0",
    "hard_coded_bf16_dq": "dq is cast to bfloat16",
    "lse_base_2": "a block's lse is to base 2",
    "lse_other_layout": "a block's lse is of (B, S, H) read as (B, H, S)",
    "lse_padded": "the partials are right and are merged with wrong weights",
    "plus_inf_empty_row": "a block without visible keys is merged with out = 0 and lse = +inf",
    "wrong_scale_forward": "the softmax scale is 3.33333 (its inverse), not 0.3",
    **dict.fromkeys((
        "atomic_dq", "bf16_partials", "both_empty", "gqa_head_sum", "masked_first_partial", "merge_overflow",
        "normaliser_bias", "tied_maxima_bias", "unwritten_output", "unzeroed_padding",
    )),
}  # fmt: skip
DESCRIBED = "no cause was (proven|tried)|merely rounds|from run to run"


def sentences(found: measure.Measured, judged: pd.DataFrame) -> dict[str, str]:
    steps = table.STEPS_SCHEMA.empty_table().to_pandas()
    return {each.variant: each.sentence for each in diagnoses(judged, found.results, steps, found.hypotheses)}


def test_every_fault_states_what_it_must_be_called_and_the_published_rates_are_of_them() -> None:
    assert set(CAUSES) == {name for name, fault in PARTS.items() if fault.label}
    assert {fault.label for fault in PARTS.values()} <= {"", *LABELS}
    assert all(fault.wrong for fault in PARTS.values())
    published = (PACKAGE.parent / "reports" / "selfcheck" / "rates.txt").read_text()
    assert set(re.findall(r"^named\s+(\w+):", published, re.MULTILINE)) == set(PARTS)


@pytest.mark.stress(2)
@pytest.mark.parametrize("name", PARTS)
def test_a_fault_is_named_in_its_tensors_alone_and_its_cause_is_proven_or_none_is_named(name: str) -> None:
    dtype = "float32" if name == "accumulator_alias" else "float64"  # in which its cause is proven
    found = measure.measured([name], "~also.trace", f"also.explain.dtype={dtype}")
    judged = verdicts(found.results)
    named = rates.detection(name, PARTS[name].expected, judged, PARTS[name].right)
    assert named.caught, named
    if name in CAUSES:
        sentence, _, _ = sentences(found, judged)[name].partition(" Not tried: ")
        if CAUSES[name] is not None:
            assert CAUSES[name] in sentence
        else:
            assert re.search(DESCRIBED, sentence) or ": " not in sentence, sentence


@pytest.mark.stress(1)
@pytest.mark.parametrize("name", low_precision.PARTS)
def test_a_fault_in_8_bits_is_named_and_the_healthy_kernel_is_not(name: str) -> None:
    fault = low_precision.PARTS[name]
    judged = verdicts(measure.results([name]))  # apart: one of the faults writes to the inputs
    assert rates.detection(name, fault.expected, judged, fault.right).caught, judged[["tensor", "label"]]
    assert set(judged["tensor"]) == set(table.TENSORS)
    assert set(verdicts(measure.results(["ring"], *fault.where))["label"]) == {ROUNDING}


@pytest.mark.stress(1)
@pytest.mark.parametrize("shape", ["", *healthy.SHAPES])
def test_healthy_variants_are_not_accused_in_any_shape(shape: str, stress: bool) -> None:
    """A seeded sample of the variants and inputs, if not all. A healthy variant has no hypotheses."""
    names = measure.healthy() if stress else random.Random(shape).sample(measure.healthy(), 2)
    inputs = healthy.INPUTS if stress else ("gaussian", *random.Random(shape).sample(healthy.INPUTS, 3))
    words = healthy.overrides(shape, inputs) if shape else ["~also.trace"]
    measured = measure.measured(names, *words)
    judged = verdicts(measured.results)
    found = rates.false_alarms(names, judged, measured.results)
    assert found.alarms.empty, found.alarms[["variant", "dtype", "world_size", "tensor", "sentence"]].to_string()
    assert found.combinations >= 40
    if not shape:
        assert measured.hypotheses.empty
        assert any("merely rounds" in each for each in sentences(measured, judged).values())


def test_the_rates_can_fail() -> None:
    """A fault that is not missed as what it is, is missed as anything else, and would be a false alarm if healthy."""
    results = synthetic.bend(synthetic.healthy(), {"tensor": "dq"}, error_rel=0.3)
    judged = verdicts(results)
    assert rates.detection("v", {"dq": "logic"}, judged, ("out",)).caught
    assert rates.detection("v", {"dq": "rounding"}, judged).missed == ("dq",)
    assert rates.detection("v", {"dv": ""}, judged, ("dq",)).accused == ("dq",)
    alarms = rates.false_alarms(["v"], judged, results)
    assert 0 < alarms.alarmed < alarms.combinations
