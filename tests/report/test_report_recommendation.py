from pathlib import Path

import pytest

from accuracy.core.number import MISSING
from accuracy.report.build import write_report
from accuracy.report.folder import read_folder
from accuracy.report.further import recommendation_table
from accuracy.report.series import Facet, facets_of, with_labels
from tests.report.synthetic import Shape, write_run

SHAPE = Shape(
    ("single_device", "ring", "zigzag", "llama3"), ("bfloat16",), (1, 2, 4), (0, 1), tensors=("out", "lse", "dk")
)
COST = {"ring": (1.2, 3.0, 100), "zigzag": (1.25, 2.0, 200), "llama3": (1.9, 1.0, 50), "single_device": (1.0, 0.5, 10)}


@pytest.fixture
def facet(tmp_path: Path) -> Facet:
    """ring is the most accurate, zigzag 4% worse and faster, llama3 far worse, fast and small; lse is bad."""
    rows = read_folder(write_run(tmp_path, SHAPE)).measured
    error, seconds, peak = (
        rows["variant"].map({name: cost[place] for name, cost in COST.items()}) for place in range(3)
    )
    error = error.mask(rows["tensor"] == "lse", 99.0).mask(rows["tensor"] == "out", 1.0)
    rows = rows.assign(x_single_device=error, seconds=seconds, peak_bytes=peak, world="processes")
    (found,) = facets_of(with_labels(rows))
    return found


def names(facet: Facet) -> list[list[str]]:
    table = recommendation_table(facet)
    return [[cell.text for cell in row] for row in table.rows] if table else []


def test_take_is_the_fastest_of_those_within_5_percent_of_the_best(facet: Facet) -> None:
    assert names(facet) == [[size, "zigzag", "llama3", "llama3"] for size in ("2", "4")]


def test_a_variant_more_than_5_percent_worse_is_not_taken_for_its_speed(facet: Facet) -> None:
    worse = facet.rows["variant"].eq("zigzag") & facet.rows["tensor"].eq("dk")
    slower = Facet(facet.label, facet.rows.assign(
        x_single_device=facet.rows["x_single_device"].mask(worse, 1.27)))  # fmt: skip
    assert [row[1] for row in names(slower)] == ["ring", "ring"]


def test_a_seed_that_compiled_first_makes_no_variant_slow(facet: Facet) -> None:
    first = facet.rows["variant"].eq("zigzag") & facet.rows["seed"].eq(0)
    compiled = facet.rows.assign(seconds=facet.rows["seconds"].mask(first, 1000.0))
    assert [row[1] for row in names(Facet(facet.label, compiled))] == ["zigzag", "zigzag"]


def test_simulated_ranks_tell_no_memory_of_a_rank(facet: Facet) -> None:
    table = recommendation_table(Facet(facet.label, facet.rows.assign(world="simulated")))
    assert table
    assert [(row[1].text, row[3].text, "B" in row[1].detail) for row in table.rows] == [("zigzag", MISSING, False)] * 2


def test_one_variant_over_ranks_is_no_choice(facet: Facet) -> None:
    alone = facet.rows[facet.rows["variant"].isin(("single_device", "ring"))]
    assert recommendation_table(Facet(facet.label, alone)) is None


def test_without_times_take_is_any_of_those_within_5_percent_of_the_best(facet: Facet) -> None:
    rows = facet.rows.assign(seconds=float("nan"), world="simulated")
    assert names(Facet(facet.label, rows)) == [[size, "ring, zigzag"] for size in ("2", "4")]


def test_the_page_shows_it(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run", SHAPE)).path.read_text(encoding="utf-8")
    assert "What to take, bfloat16" in page
