"""The first screen says of every kind of table what the table says."""

from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.first_screen import Answer
from accuracy.report.first_screen import answer as answer_of
from accuracy.report.folder import material_of
from accuracy.verdict.headline import MOST_WORDS
from tests.unit.report import tables
from tests.unit.report.tables import Change, run_of, shape

REPORTS = Path(__file__).parents[3] / "reports"
ALL_DTYPES = shape(dtypes=("bfloat16", "float32", "float64"))
Cell = tuple[str, str, int, float, int | None] | None
"""Of the worst cell: tensor, dtype, number of ranks, times single device's error or the floor, and the worst rank."""
HEALTHY: Cell = ("dk", "bfloat16", 4, 1.15, 0)
EXPECTED: dict[str, tuple[tables.Shape, Change | None, str, str, Cell]] = {
    "healthy": (tables.FEW, None, "ROUNDING", "up to 4 ranks", HEALTHY),
    "a logic bug": (ALL_DTYPES, tables.logic, "BUG", "ring: dk", ("dk", "bfloat16", 2, 160, None)),
    "a logic bug from four ranks on": (
        ALL_DTYPES, partial(tables.logic, least=4), "BUG", "ring: dk is wrong from 4 ranks on",
        ("dk", "bfloat16", 4, 160, 3)),
    "a logic bug that is larger under a window": (
        ALL_DTYPES, tables.larger_under_a_window, "BUG", "ring: dk", ("dk", "bfloat16", 2, 160, None)),
    "not finite": (tables.FEW, tables.not_finite, "BUG", "zigzag: dv", ("dv", "bfloat16", 4, 1.15, 0)),
    "more rounding than explained": (
        shape(variants=("single_device", "ring", "llama3")), tables.excess, "EXCESS ROUNDING", "llama3: dk and dv",
        ("dk", "bfloat16", 4, 3.45, 0)),
    "nothing is finite": (
        shape(variants=("single_device", "ring")), tables.no_number, "BUG", "out and lse are not finite",
        ("out", "bfloat16", 1, float("inf"), None)),
    "one rank": (shape(variants=("single_device", "bpt"), world_sizes=(1,)), None, "ROUNDING", "1 rank",
                 ("dk", "bfloat16", 1, 1.15, None)),
    "kernels": (shape(variants=("single_device",)), tables.kernels, "EXCESS ROUNDING", "fused: dk",
                ("dk", "bfloat16", 1, 2.5, None)),
    "many variants": (shape(world_sizes=(2,), seeds=(0,)), tables.many_variants, "ROUNDING", "up to 2 ranks",
                      ("dk", "bfloat16", 2, 1.26, 0)),
    "failed": (shape(variants=(), reasons=("no float64", "out of memory")), None, "NOT MEASURED", "", None),
    "partial": (shape(record={"planned": 99, "ended": None}), None, "INCOMPLETE", "up to 4 ranks", HEALTHY),
}  # fmt: skip


def answer(folder: Path, table: tables.Shape, change: Change | None = None) -> Answer:
    return answer_of(material_of(run_of(folder, table, change)))


@pytest.mark.stress(5)
@pytest.mark.parametrize("name", EXPECTED)
def test_badge_title_and_numbers_are_about_the_worst_of_what_is_wrong(name: str, tmp_path: Path, stress: bool) -> None:
    table, change, badge, part, cell = EXPECTED[name]
    if stress and change is tables.many_variants:
        change = partial(tables.many_variants, copies=500)
    run = run_of(tmp_path, table, change)
    found = answer_of(material_of(run))
    assert found.badge == badge
    assert part in found.title
    assert 0 < len(found.title.split()) <= MOST_WORDS
    worst = found.worst
    seen = worst and (worst.tensor, worst.dtype, worst.world_size, pytest.approx(worst.times, rel=0.01), worst.rank)
    assert seen == cell
    done = run.cases.loc[run.cases["status"] == "ok"]
    assert found.tiles[-1].value == str(len(done))
    assert len(found.tiles) == 1 if cell is None else len(found.tiles) in (3, 4)


def test_of_verdicts_alike_the_furthest_leads_and_what_to_take_instead_is_not_flagged_itself(tmp_path: Path) -> None:
    """ring, before zigzag in the table, is less far off; zigzag is not finite at two ranks."""

    def both(rows: pd.DataFrame) -> pd.DataFrame:
        for variant, factor in (("ring", 2.5), ("zigzag", 3.0)):
            rows = tables.times(rows, tables.of(rows, variant, "dk", "dv"), factor)
        return rows

    found = answer(tmp_path / "excess", tables.FEW, both)
    assert found.title.startswith("zigzag: dk and dv")
    assert found.tiles[0] == ("3.45\N{MULTIPLICATION SIGN}", "single device's error: dk of zigzag, bfloat16, 4 ranks")
    assert "Also flagged: ring." in found.advice
    assert "instead" not in found.advice
    found = answer(tmp_path / "one", tables.FEW, tables.logic)
    assert found.command == "accuracy experiment=diagnose variant=ring"
    assert "Take zigzag (1.15 times single device's error) instead." in found.advice


def test_a_user_s_function_is_called_by_what_the_command_line_knows_it_by(tmp_path: Path) -> None:
    def wrong(rows: pd.DataFrame) -> pd.DataFrame:
        mine = rows.assign(options="fn=mine.py:ring,layout=bhsd", sharding="zigzag")
        return tables.times(mine, mine["tensor"] == "dk", 1e3)

    found = answer(tmp_path, tables.FEW, wrong)
    command = "variant=callable variant.callable.fn=mine.py:ring variant.callable.layout=bhsd variant.sharding=zigzag"
    assert found.command == f"accuracy experiment=diagnose {command}"
    run = run_of(tmp_path / "made", shape(record={"experiment": "diagnose"}), wrong)
    assert answer_of(material_of(run)).command == ""  # it made the page


def test_the_words_of_the_first_screen_are_defined(tmp_path: Path) -> None:
    found = answer(tmp_path, shape(variants=("single_device", "ring", "llama3")), tables.excess)
    assert [term.split(":")[0] for term in found.terms.split(" \u00b7 ")] == ["error", "single device", "lse", "delta"]
