"""What differs from run to run leads the verdict, whatever else is wrong, and is told by its size."""

import random

import pandas as pd
import pytest

from accuracy.results import table
from accuracy.verdict.diagnosis import Diagnosis, diagnoses
from accuracy.verdict.rule.nondeterministic import OTHER_ORDER, RACE
from accuracy.verdict.verdict import verdicts
from tests.fault import measure
from tests.fault.planted import race
from tests.verdict.synthetic import bend, healthy


def said(results: pd.DataFrame) -> Diagnosis:
    (found,) = diagnoses(verdicts(results), results, table.STEPS_SCHEMA.empty_table().to_pandas(),
                         table.HYPOTHESES_SCHEMA.empty_table().to_pandas())  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("dtype", "size", "cause"),
    [("float32", 4e-7, OTHER_ORDER), ("float32", 1e-2, RACE), ("bfloat16", 1e-2, OTHER_ORDER), ("bfloat16", 0.5, RACE)],
)  # fmt: skip
def test_rounding_of_the_dtype_is_another_order_of_sums_and_more_is_a_race(dtype: str, size: float, cause: str) -> None:
    where = {"tensor": ("dq", "dk"), "dtype": dtype, "rank": (-1, 1)}
    found = said(bend(healthy(), where, repeats_differ=2.0, repeats_runs=1.0, repeats_size=size))
    expected = f"dq and dk differ from run to run, by at most {size:.2g} of the tensor's size: {cause}."
    assert found.sentence.startswith(expected)
    assert found.label == "nondeterministic"


def test_what_does_not_repeat_leads_before_a_bug_whose_label_stays() -> None:
    wrong = bend(healthy(), {"tensor": "out"}, error_rel=0.3)
    found = said(bend(wrong, {"tensor": "dv", "dtype": "float32", "rank": -1}, repeats_differ=2.0))
    assert found.sentence.startswith("dv differs from run to run")
    assert "out is wrong too" in found.sentence
    assert found.label == "logic"


def test_a_planted_race_leads_though_other_cases_look_like_a_fault_of_logic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "CHANCE", random.Random(0))
    once = measure.results(["race_often"], "~also.trace", "~also.reruns", "~also.explain")
    results = pd.concat([once, measure.results(["race_often"], *race.RARELY, "reruns.repeat=40")])
    assert "logic" in set(verdicts(results)["label"])
    assert said(results).sentence.startswith("out and lse differ from run to run, by at most")
    assert "a race, other data was read" in said(results).sentence
