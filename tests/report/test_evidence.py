"""Every measured number of a document is a table's: wrong digits, missing passages and unnamed numbers are found."""

import random
import re
import sys
from pathlib import Path

import pytest

from accuracy.core.paths import PACKAGE
from accuracy.report.evidence import Said, complaints, lines, of_unpublished_runs, passages_of, with_numbers
from accuracy.report.measured import NUMBER, published_only

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
        (("**1.25**", "**1.26**"), r"line 10 prints: error is 1.26 times .* the tables say: error is .*1.25"),
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


def test_the_head_of_a_table_is_no_place_for_numbers() -> None:
    table = "| 1 | 2 | 3 |\n|---|---|---|\n| 1 | 7.1 | 8.2 |\n"
    assert with_numbers(table, lines({"1": (7.3, 8.4)}, ".1f")) == table.replace("7.1", "7.3").replace("8.2", "8.4")


def test_a_table_is_compared_cell_by_cell_each_column_in_its_format() -> None:
    printed = "| | a | b |\n|---|---|---|\n| x | **1.20** | 3e-7 |\n| y | 2.4e3 | none |\n"
    said = lines({"x": (1.2, 3e-7), "y": ("2.4e3", "none")}, ".2f", ".0e")
    assert list(complaints(printed, said)) == []
    assert len(list(complaints(printed.replace("3e-7", "4e-7"), said))) == 1


UNPUBLISHED = """## Finding

Published. The unpublished run (`accuracy seed=3`):

| | 2 |
|---|---|
| ring | 7.1 |

In the same unpublished run: 2.3%.

- Measured: 4.5.

Of the same unpublished run:

- 1.2 times
- 3.4 times

Measured: 6.7.
"""


def test_numbers_of_unpublished_runs_are_counted_and_have_a_command_beside_them() -> None:
    assert of_unpublished_runs(UNPUBLISHED) == 4
    assert [each[-3:] for each in complaints(UNPUBLISHED, [])] == ["4.5", "6.7"]
    (first, *_) = complaints(UNPUBLISHED.replace("accuracy seed=3", "accuracy"), [])
    assert first == "line 3: unpublished, and no command is beside it"


@pytest.fixture(scope="module")
def documents() -> dict[Path, list[Said]]:
    return passages_of(PACKAGE.parent)


def test_every_measured_number_of_the_documents_is_a_published_table_s(documents: dict[Path, list[Said]]) -> None:
    assert [each for path, said in documents.items() for each in complaints(path.read_text(), said)] == []


def test_a_wrong_digit_in_a_measured_number_of_any_document_is_found(documents: dict[Path, list[Said]]) -> None:
    """One drawn number of each."""
    drawn, missed = random.Random(0), []
    for path, said in documents.items():
        text = path.read_text()
        places = [number.start() for number in NUMBER.finditer(published_only(text))]
        for place in drawn.sample(places, min(1, len(places))):
            wrong = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
            missed += [] if list(complaints(wrong, said)) else [f"{path.parent.name}: {text[place : place + 20]}"]
    assert missed == []


def test_no_file_beside_a_script_hides_a_module_of_python() -> None:
    """`python experiments/NAME/script.py` looks for modules in that folder first."""
    beside = {path.stem for path in (PACKAGE.parent / "experiments").rglob("*.py")}
    assert beside & sys.stdlib_module_names == set()
