"""An experiment's Answer names what it is about; that tables bear it out is held by `make lint` (test_blocks.py)."""

import re
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.build import answer_of
from accuracy.report.folder import read_folder
from accuracy.report.material import material_of
from accuracy.report.prose import sections
from accuracy.results import table
from accuracy.results.claim import answer_case

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
ANSWERS = {
    path.parent.name: text
    for path in sorted(ROOT.glob("experiments/*/README.md"))
    if (text := sections(path.read_text()).get("Answer"))
}


@pytest.mark.skipif(not REPORTS.is_dir(), reason="a source distribution has no reports/")
def test_a_page_opens_on_the_case_that_its_answer_names() -> None:
    worst = answer_of(material_of(read_folder(REPORTS / "te_growth" / "nvidia-h200"))).worst
    assert worst is not None
    assert (worst.tensor, "te_p2p" in worst.series) == ("out", True)


def test_the_case_that_an_answer_names_is_measured() -> None:
    for experiment, case in ((name, pd.Series(answer_case(name))) for name in ANSWERS if answer_case(name)):
        tables = (table.read_results(path.parent) for path in (REPORTS / experiment).glob("*/results.parquet"))
        assert any((rows[[*case.index]].fillna("") == case).all(axis=1).any() for rows in tables), experiment


BOUND = re.compile(r"^(.*?)\bwithin \d+(?:\.\d+)? times", re.DOTALL)


def nameless(title: str) -> bool:
    """Whether an Answer bounds errors without saying of which tensors: lse, in float32, is often beyond it."""
    bound = BOUND.search(title)
    return bound is not None and not re.search(r"\b(out|lse|d[qkv]|gradients?)\b", bound[1])


def test_a_bound_that_names_no_tensor_is_found() -> None:
    assert nameless("On every rank ring attention stays within 1.4 times single device's error.")
    assert nameless("Every kernel merely rounds, within 2.2 times the least possible error; they differ in dk.")
    assert not nameless("Out, dq, dk and dv of a ring stay within 1.4 times single device's error.")


def test_an_answer_names_the_tensors_of_its_bound() -> None:
    assert [name for name, text in ANSWERS.items() if nameless(text.partition("\n\n")[0])] == []
