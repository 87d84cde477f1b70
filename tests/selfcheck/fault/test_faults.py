"""Every planted fault is named, with the label and tensors of its report, and healthy variants are not."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.core.paths import PACKAGE
from accuracy.results import table
from accuracy.selfcheck import measure, rates
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.label import LABELS
from accuracy.verdict.signature import TABLE, signature_of
from accuracy.verdict.verdict import verdicts

pytestmark = pytest.mark.xdist_group("selfcheck")  # the table is measured once

FAULTS = {fault.name: fault for fault in measure.faults()}
CAUSES = {  # the signature that each planted fault must be recognised by; None: described, not guessed
    "accumulator_alias": "aliased accumulator",
    "atomic_dq": "atomic adds",
    "bf16_grad_sum": "sums in 16 bits",
    "bf16_partials": None,
    "both_empty": "merge of empty partials",
    "bpt_stale_buffer": "uncleared accumulator",
    "causal_bottom_right": "miscounted keys",
    "diagonal_not_causal": "leaking mask",
    "dropped_key": "miscounted keys",
    "finite_mask_sentinel": None,
    "gqa_head_sum": "heads summed after rounding",
    "hard_coded_bf16_dq": "hard-coded cast",
    "lse_base_2": "lse to base 2",
    "lse_other_layout": "lse read wrongly",
    "lse_padded": "lse read wrongly",
    "masked_first_partial": "merge of empty partials",
    "merge_overflow": "overflow on peaked scores",
    "normaliser_bias": "biased normaliser",
    "plus_inf_empty_row": "merge of empty partials",
    "tied_maxima_bias": "biased product",
    "unwritten_output": "unwritten memory",
    "unzeroed_padding": "unwritten memory",
    "wrong_scale_forward": None,
}


@pytest.fixture(scope="session")
def measured() -> pd.DataFrame:
    return measure.results([*FAULTS, *measure.healthy()], "~also.trace")  # traces name causes, not verdicts


@pytest.fixture(scope="session")
def judged(measured: pd.DataFrame) -> pd.DataFrame:
    return verdicts(measured)


@pytest.fixture(scope="session")
def said(measured: pd.DataFrame, judged: pd.DataFrame) -> dict[str, Any]:
    steps = table.STEPS_SCHEMA.empty_table().to_pandas()
    return {each.variant: each for each in diagnoses(judged, measured, steps)}


def test_every_fault_states_what_it_must_be_called() -> None:
    files = {path.stem for path in (PACKAGE / "selfcheck" / "fault").glob("[a-z]*.py")} - {"base"}
    assert files == set(FAULTS) == set(CAUSES)
    assert {label for fault in FAULTS.values() for label in fault.expected.values()} <= set(LABELS)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_planted_fault_is_named(name: str, judged: pd.DataFrame) -> None:
    found = rates.detection(name, FAULTS[name].expected, judged)
    assert not found.missed, found


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_planted_fault_is_recognised_or_described_but_not_guessed(name: str, said: dict[str, Any]) -> None:
    known = signature_of(said[name].pattern)
    assert (known and known.name) == CAUSES[name], said[name].sentence


def test_every_signature_is_held_to_a_planted_fault() -> None:
    assert {each.name for each in TABLE} == {name for name in CAUSES.values() if name}


def test_healthy_variants_are_not_called_faulty(judged: pd.DataFrame, measured: pd.DataFrame) -> None:
    found = rates.false_alarms(measure.healthy(), judged, measured)
    assert found.alarms.empty, found.alarms[
        ["variant", "dtype", "world_size", "tensor", "label", "sentence"]
    ].to_string()
    assert found.combinations >= 1000


def test_healthy_rings_are_not_called_faulty_where_their_partials_cancel() -> None:
    """On attention sinks and outliers rings round far more than single device does. Condition numbers say so: with
    others, as if nothing cancelled, rings would be alarmed, and where there are none nobody is."""
    rings = ["ring", "zigzag", "striped", "llama3_ring"]
    found = measure.results(rings, "inputs=[gaussian,attention_sink,outliers]", "conditions=true", "also=null",
                            "dtype=[bfloat16,float16,float32]")  # fmt: skip

    def alarmed(table: pd.DataFrame) -> int:
        return rates.false_alarms(rings, verdicts(table), table).alarmed

    assert alarmed(found) == 0
    assert alarmed(found.assign(condition_sum=1.0, condition_rounding=1.0)) > 10
    assert alarmed(found.assign(condition_sum=None, condition_rounding=None)) == 0


def test_a_missed_fault_and_a_false_alarm_are_counted(judged: pd.DataFrame, measured: pd.DataFrame) -> None:
    """The rates themselves can fail."""
    assert rates.detection("bf16_partials", {"out": "logic"}, judged).missed == ("out",)
    assert rates.detection("dropped_key", {"out": "rounding"}, judged).missed == ("out",)
    alarmed = rates.false_alarms(["dropped_key"], judged, measured)
    assert 0 < alarmed.alarmed <= alarmed.combinations


def test_the_seeds_own_case_is_told_in_one_sentence(said: dict[str, Any]) -> None:
    sentence = said["bpt_stale_buffer"].sentence
    for words in ("dq, dk and dv are wrong at any precision", "from rank 1 on", "growing with the number of ring steps",
                  "looks like an accumulator that is not cleared between steps"):  # fmt: skip
        assert words in sentence
    healthy = said["bpt_ring"].sentence
    assert "merely rounds" in healthy


def test_a_fault_of_ones_own_is_judged_the_same_way(tmp_path: Path) -> None:
    """The label of faults.md is not read from the fault: a copy under another name gets the same."""
    results = measure.results(["dropped_key"], "also={}", "dtype=[bfloat16,float64]")
    renamed = verdicts(results.assign(variant="x"))
    assert "logic" in set(renamed["label"])


def test_readme_quotes_the_rates_that_make_stress_wrote() -> None:
    root = PACKAGE.parent
    rates = (root / "reports" / "selfcheck" / "rates.txt").read_text()
    assert set(re.findall(r"^named\s+(\w+):", rates, re.MULTILINE)) == set(FAULTS)
    named = re.search(r"detection: (.* planted faults) named", rates)
    combinations = re.search(r"false alarms: 0 of (\S+ healthy combinations)", rates)
    assert named
    assert combinations
    readme = " ".join((root / "README.md").read_text().split())
    assert named[1] in readme
    assert combinations[1] in readme
