"""Every number of an experiment's Answer, and of its line of causes, is in a claim that its table bears out.

An experiment that publishes an extract alone has the numbers of its Answer in its quoted.py: see test_evidence.
"""

import re
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.build import answer_of
from accuracy.report.folder import read_folder
from accuracy.report.material import material_of
from accuracy.report.prose import sections
from accuracy.results import table
from accuracy.results.claim import answer_case, judge_answer

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
ANSWERS = {
    path.parent.name: text
    for path in sorted(ROOT.glob("experiments/*/README.md"))
    if (text := sections(path.read_text()).get("Answer")) and [*REPORTS.glob(f"{path.parent.name}/*/results.parquet")]
}
QUANTITY = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?)(?=(?: to \d+(?:\.\d+)?)?(?: times|%| ranks)\b|%)")
PER_WORD = re.compile(r"factor of \w+")


def loose(text: str, statements: list[str]) -> list[str]:
    """The quantities of an Answer that no statement has."""
    said, plain = " ".join(statements), " ".join(text.split())
    numbers = [*QUANTITY.findall(plain), *PER_WORD.findall(plain)]
    return [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", said)]


def test_a_number_that_no_claim_has_is_found() -> None:
    text = "A ring has 1.2 to\n1.4 times at 64 ranks, 99% of it by rounding, to a factor of five (8 times)."
    held = ["1.2", "1.4", "64", "99", "8", "factor of five"]
    assert loose(text, held) == []
    for number in held:
        assert loose(text, [each for each in held if each != number]) == [number]
    assert loose(text, ["1.25 11.4 64.5 999 18 factor of fifty"]) != []


@pytest.mark.skipif(not REPORTS.is_dir(), reason="a source distribution has no reports/")
@pytest.mark.stress(1)
@pytest.mark.parametrize("experiment", ANSWERS)
def test_every_number_of_an_answer_is_borne_out_by_a_published_table(experiment: str) -> None:
    tables = [table.read_results(path.parent) for path in sorted((REPORTS / experiment).glob("*/results.parquet"))]
    judged = [judge_answer(experiment, rows) for rows in tables]
    assert [claim.line for claims in judged for claim in claims if claim.holds is False] == []
    assert any(claims and all(claim.holds for claim in claims) for claims in judged)
    assert loose(ANSWERS[experiment], [claim.statement for claim in judged[0]]) == []


@pytest.mark.skipif(not REPORTS.is_dir(), reason="a source distribution has no reports/")
def test_a_page_opens_on_the_case_that_its_answer_names() -> None:
    worst = answer_of(material_of(read_folder(REPORTS / "fp8_remedies" / "amd-epyc"))).worst
    assert worst is not None
    assert (worst.tensor, "policy=fp8_hadamard" in worst.series) == ("out", True)
    assert "outliers" in worst.facet


@pytest.mark.parametrize("experiment", [name for name in ANSWERS if answer_case(name)])
def test_the_case_that_an_answer_names_is_measured(experiment: str) -> None:
    case = pd.Series(answer_case(experiment))
    tables = (table.read_results(path.parent) for path in (REPORTS / experiment).glob("*/results.parquet"))
    assert any((rows[[*case.index]].fillna("") == case).all(axis=1).any() for rows in tables)


BOUND = re.compile(r"^(.*?)\bwithin \d+(?:\.\d+)? times", re.DOTALL)


def nameless(title: str) -> bool:
    """Whether an Answer bounds errors without saying of which tensors: lse, in float32, is often beyond it."""
    bound = BOUND.search(title)
    return bound is not None and not re.search(r"\b(out|lse|d[qkv]|gradients?)\b", bound[1])


def test_a_bound_that_names_no_tensor_is_found() -> None:
    assert nameless("On every rank ring attention stays within 1.4 times single device's error.")
    assert nameless("Every kernel merely rounds, within 2.2 times the least possible error; they differ in dk.")
    assert not nameless("Out, dq, dk and dv of a ring stay within 1.4 times single device's error.")


@pytest.mark.parametrize("experiment", ANSWERS)
def test_an_answer_names_the_tensors_of_its_bound(experiment: str) -> None:
    assert not nameless(ANSWERS[experiment].partition("\n\n")[0])
