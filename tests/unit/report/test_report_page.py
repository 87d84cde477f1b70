"""The written page loads nothing and runs no text of others; its first screen says of every kind of table what the
table says."""

from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from accuracy.core.paths import PACKAGE
from accuracy.report.build import LIMIT_BYTES, ReportSummary, write_report
from accuracy.report.first_screen import Answer
from accuracy.report.first_screen import answer as answer_of
from accuracy.report.folder import material_of, read_folder
from accuracy.verdict.headline import MOST_WORDS
from tests.command_line import SHORT, CommandLine
from tests.processes import python
from tests.unit.report import page_check, tables
from tests.unit.report.page_check import embedded
from tests.unit.report.synthetic import HOSTILE, HOSTILE_SHAPE, Shape, write_large_run, write_run
from tests.unit.report.tables import Change, run_of, shape

pytestmark = pytest.mark.xdist_group("page")  # which is written once

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
    "kernels": (shape(variants=("single_device",)), tables.kernels, "EXCESS ROUNDING", "fused: dk",
                ("dk", "bfloat16", 1, 2.5, None)),
    "failed": (shape(variants=(), reasons=("no float64", "out of memory")), None, "NOT MEASURED", "", None),
    "partial": (shape(record={"planned": 99, "ended": None}), None, "INCOMPLETE", "up to 4 ranks", HEALTHY),
}  # fmt: skip


def answer(folder: Path, table: tables.Shape, change: Change | None = None) -> Answer:
    return answer_of(material_of(run_of(folder, table, change)))


@pytest.mark.stress(5)
@pytest.mark.parametrize("name", EXPECTED)
def test_badge_title_and_numbers_are_about_the_worst_of_what_is_wrong(name: str, tmp_path: Path) -> None:
    table, change, badge, part, cell = EXPECTED[name]
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
    assert [term.split(":")[0] for term in found.terms.split(" \u00b7 ")] == ["error", "single device", "lse", "delta"]
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


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from accuracy.cli.report import main; sys.exit(main())"


@pytest.fixture(scope="module")
def summary(folder: Path) -> ReportSummary:
    return write_report(folder)


@pytest.fixture(scope="module")
def page(summary: ReportSummary) -> str:
    return summary.path.read_text(encoding="utf-8")


def test_the_page_stands_alone(page: str) -> None:
    for folder, sheet in (("chart", "report.css"), ("report", "explorer.css")):
        assert (PACKAGE / folder / "page" / sheet).read_text(encoding="utf-8") in page
    assert page_check.external_loads(page) == []
    assert page_check.repeated_identifiers(page) == set()
    assert page_check.repeated_identifiers(page + '<p id="main">') == {"main"}
    for fault in ('<img src="https://x.y/z.png">', "<style>a{background:url(//x)}</style>"):
        assert page_check.external_loads(page.replace("</main>", f"{fault}</main>"))


def test_the_page_needs_no_torch_and_its_bytes_are_the_same_again(folder: Path, page: str, tmp_path: Path) -> None:
    for name in ("results", "positions", "run.json"):
        (tmp_path / name).symlink_to(folder / name)
    done = python("-c", WITHOUT_TORCH, str(tmp_path), PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(tmp_path / "report.html")
    assert len(done.stdout.splitlines()) == 5
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


def test_a_terminal_and_the_rows_inside_say_what_the_table_says(
    folder: Path, summary: ReportSummary, page: str
) -> None:
    title, numbers, advice, facts = summary.lines
    assert title == f"{summary.answer.badge}: {summary.answer.title}"
    assert numbers.startswith("2.30\N{MULTIPLICATION SIGN} ")  # 1.15 * 4^0.5
    assert advice
    assert "1 failed, 1 unsupported" in numbers
    assert facts.endswith("2 seeds")
    content, run = embedded(page), read_folder(folder)
    assert sorted(content["case_id"]) == sorted(run.results["case_id"])
    assert len(set(content["command"])) == len(run.cases)


def test_infinite_zero_and_missing_numbers_have_a_place(folder: Path, tmp_path: Path) -> None:
    rows = pd.read_parquet(folder / "results")
    rows = rows[rows["variant"].isin(["ring", "single_device"])]
    far = (rows["tensor"] == "dq") & (rows["world_size"] > 2)
    rows.loc[far, ["error_rel", "x_single_device", "error_max"]] = float("inf"), float("inf"), 0.0
    rows.loc[rows["tensor"] == "out", ["error_rel", "error_mean", "x_floor", "x_single_device", "seconds"]] = None
    rows.loc[rows["tensor"] == "lse", "error_rel"] = 0.0
    rows.to_parquet(tmp_path / "results.parquet")
    assert ">∞<" in write_report(tmp_path).path.read_text(encoding="utf-8")


def test_a_run_killed_midway_or_with_a_broken_record_is_reported(tmp_path: Path) -> None:
    shape = Shape(("ring",), ("bfloat16",), (2,), (0,), ("out",), record={"planned": 99, "ended": None})
    folder = write_run(tmp_path / "killed", shape, positions=False)
    summary = write_report(folder)
    assert summary.answer.badge == "INCOMPLETE"
    assert summary.answer.tiles[-1].value == "1"
    assert "Partial run: " in summary.path.read_text(encoding="utf-8")
    for record in (None, "", "[]", '{"provenance": 3, "config": [], "planned": "many"}'):
        (folder / "run.json").unlink(missing_ok=True)
        if record is not None:
            (folder / "run.json").write_text(record)
        assert write_report(folder, to=tmp_path / "again.html").path.exists()
    summary = write_report(write_run(tmp_path / "unsupported", Shape(variants=())))
    assert "Nothing was measured" in summary.path.read_text(encoding="utf-8")


def test_rows_that_the_run_did_not_end_with_are_told_first(accuracy: CommandLine) -> None:
    accuracy(*SHORT, "output_dir=run")
    told = "warning: ring float32 W=2 seed 0 has rows that are not those the run ended with"
    assert not write_report(Path("run")).lines[0].startswith("warning")
    (path,) = Path("run/results").iterdir()
    pq.write_table(pq.read_table(path).slice(1), path)
    assert write_report(Path("run")).lines[0].startswith(told)
    assert "are not those the run ended with" in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.stress
def test_fifty_thousand_rows_stay_below_three_megabytes(tmp_path: Path) -> None:
    page = write_report(write_large_run(tmp_path / "large")).path.read_bytes()
    assert len(page) < LIMIT_BYTES
    assert len(embedded(page.decode())["case_id"]) == 50_000
    assert "All 50,000 rows" in page.decode()


def test_hostile_text_is_shown_and_makes_no_element(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path, HOSTILE_SHAPE)).path.read_text(encoding="utf-8")
    assert page_check.dangerous(page) == []
    assert HOSTILE not in page
    assert "{{7*7}}" in page  # shown as written, not computed
    assert page.count("&lt;script&gt;window.hacked=1") > 8
    for fault in (HOSTILE, "<p onclick=x>", "<iframe></iframe>"):
        assert page_check.dangerous(page.replace("</main>", f"{fault}</main>"))
