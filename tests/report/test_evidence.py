"""Every measured number of a document is a table's: wrong digits, missing passages and unnamed numbers are found."""

import re
import sys

import pytest

from accuracy.core.paths import PACKAGE
from accuracy.report.evidence import Said, check, complaints, with_numbers

DOCUMENT = """# Growth

## Prediction

It doubles 7 times.

## Finding

Measured with torch 2.11 on 4 H200s at W = 2, 8 (`accuracy seed=3`, 2026-11-23).
Its error is **1.25** times single
device's, and stays below 1.5.

| | 2 | 8 |
|---|---|---|
| ring | 1.20 | 1.25 |
"""
TRUE = [
    Said("error is **{:.2f}** times single device's, and stays below 1.5.", (1.2512,)),
    Said("| ring | {:.2f} | {:.2f} |", (1.2, 1.25)),
]


def test_what_tables_bear_out_has_no_complaint_and_settings_need_no_table() -> None:
    assert list(complaints(DOCUMENT, TRUE)) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("**1.25**", "**1.26**"), r"line 10 prints: error is \*\*1.26\*\* times .* the tables say: error is .*1.25"),
        (("1.20 |", "1.02 |"), r"line 15 prints: \| ring \| 1.02 \| 1.25 \|; the tables say: \| ring \| 1.20"),
        (("Measured", "Measured 31.5 ms"), "line 9: no table is named for 31.5"),
        (("stays below", "may exceed"), "no such passage: error is"),
    ],
)
def test_a_planted_wrong_digit_or_a_number_of_no_table_is_found(change: tuple[str, str], found: str) -> None:
    (line, *_) = complaints(DOCUMENT.replace(*change), TRUE)
    assert re.match(found, line)


def test_a_limit_that_the_table_exceeds_is_found() -> None:
    limit = [Said("error is **{:.2f}** times", (1.25,)), Said("stays below 1.5.", holds=False), TRUE[1]]
    assert list(complaints(DOCUMENT, limit)) == ["line 11 prints: stays below 1.5.; the tables do not bear it out"]


def test_new_numbers_of_the_tables_are_written_into_the_document_and_nothing_else_is() -> None:
    new = [Said(TRUE[0].text, (1.311,)), Said(TRUE[1].text, (1.2, 1.4))]
    written = with_numbers(DOCUMENT, new)
    assert written == DOCUMENT.replace("**1.25**", "**1.31**").replace("| 1.25 |", "| 1.40 |")
    assert list(complaints(written, new)) == []


def test_every_number_of_the_bound_documents_is_a_published_table_s() -> None:
    assert list(check(PACKAGE.parent)) == []


def test_no_file_beside_a_script_hides_a_module_of_python() -> None:
    """`python experiments/NAME/script.py` looks for modules in that folder first."""
    beside = {path.stem for path in (PACKAGE.parent / "experiments").rglob("*.py")}
    assert beside & sys.stdlib_module_names == set()
