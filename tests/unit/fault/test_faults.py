"""Every planted fault is named, with the label and tensors of its report, and healthy variants are not."""

import random
import re

import pytest

from accuracy.core.paths import PACKAGE
from accuracy.results import table
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.label import LABELS, ROUNDING
from accuracy.verdict.verdict import verdicts
from tests.unit.fault import healthy, low_precision, measure, rates
from tests.unit.fault.planted import PARTS
from tests.unit.verdict import synthetic


def test_every_fault_states_what_it_must_be_called_and_the_published_rates_are_of_them() -> None:
    assert {fault.label for fault in PARTS.values()} <= {"", *LABELS}
    assert all(fault.wrong for fault in PARTS.values())
    published = (PACKAGE.parent / "reports" / "selfcheck" / "rates.txt").read_text()
    assert set(re.findall(r"^named\s+(\w+):", published, re.MULTILINE)) == set(PARTS)


@pytest.mark.stress(2)
@pytest.mark.parametrize("name", PARTS)
def test_a_fault_is_named_in_its_tensors_alone_and_its_cause_is_proven_or_none_is_named(name: str) -> None:
    fault = PARTS[name]
    dtype = "float32" if name == "accumulator_alias" else "float64"  # in which its cause is proven
    found = measure.measured([name], "~also.trace", f"also.explain.dtype={dtype}")
    named = rates.detection(name, fault.expected, verdicts(found.results), fault.right)
    assert named.caught, named
    why = rates.explanation(name, fault.causes, found.hypotheses, found.results)
    assert why.right is not False, why
    if fault.label:  # of a report: what is described has no cause
        assert bool(why.proven - {"follows"}) == bool(fault.causes), why


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
        steps = table.STEPS_SCHEMA.empty_table().to_pandas()
        said = diagnoses(judged, measured.results, steps, measured.hypotheses)
        assert any("merely rounds" in each.sentence for each in said)


def test_the_rates_can_fail() -> None:
    """A fault that is not missed as what it is, is missed as anything else, and would be a false alarm if healthy."""
    results = synthetic.bend(synthetic.healthy(), {"tensor": "dq"}, error_rel=0.3)
    judged = verdicts(results)
    assert rates.detection("v", {"dq": "logic"}, judged, ("out",)).caught
    assert rates.detection("v", {"dq": "rounding"}, judged).missed == ("dq",)
    assert rates.detection("v", {"dv": ""}, judged, ("dq",)).accused == ("dq",)
    alarms = rates.false_alarms(["v"], judged, results)
    assert 0 < alarms.alarmed < alarms.combinations
