import shutil
from pathlib import Path

import pandas as pd
import pytest

from accuracy.report.build import LIMIT_BYTES, ReportSummary, write_report
from accuracy.report.folder import read_folder
from tests.processes import python
from tests.report import page_check
from tests.report.embedded_rows import embedded
from tests.report.synthetic import Shape, write_large_run, write_run

pytestmark = pytest.mark.xdist_group("page")  # which is written once
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from accuracy.cli.report import main; sys.exit(main())"


def test_the_page_loads_nothing(page: str) -> None:
    assert page_check.external_loads(page) == []


@pytest.mark.parametrize("fault", ['<img src="https://x.y/z.png">', "<style>a{background:url(//x)}</style>"])
def test_the_checker_of_loads_sees_a_planted_one(page: str, fault: str) -> None:
    assert page_check.external_loads(page.replace("</main>", f"{fault}</main>"))


def test_every_chart_has_a_text_alternative(page: str) -> None:
    assert page.count('class="chart"') == 1  # the key picture; all others are drawn from the rows
    assert page_check.charts_without_text(page) == []


@pytest.mark.parametrize(("good", "bad"), [("<desc", "<g"), ('role="img"', ""), ("<table", "<div")])
def test_the_checker_of_charts_sees_a_planted_fault(page: str, good: str, bad: str) -> None:
    assert page_check.charts_without_text(page.replace(good, bad))


def test_no_identifier_occurs_twice(page: str) -> None:
    assert page_check.repeated_identifiers(page) == set()
    assert page_check.repeated_identifiers(page + '<p id="main">') == {"main"}


def test_colours_follow_the_page_into_the_dark(page: str) -> None:
    drawn = page[page.index("<main") : page.index("</main>")]
    assert "var(--series-" in drawn
    assert "#fe0" not in drawn
    assert "stroke:#" not in drawn.replace(" ", "")


def test_the_table_needs_no_torch_and_the_bytes_are_the_same_again(folder: Path, page: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("results", "positions", "run.json"):
        (copy / name).symlink_to(folder / name)
    done = python("-c", WITHOUT_TORCH, str(copy), PYTHONHASHSEED="7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == str(copy / "report.html")
    assert len(done.stdout.splitlines()) == 4
    assert (copy / "report.html").read_text(encoding="utf-8") == page


def test_a_terminal_gets_what_the_first_screen_says(summary: ReportSummary) -> None:
    title, advice, facts = summary.lines
    assert title == summary.answer.title
    assert "4.60 times" in title  # 1.15 * 16^0.5
    assert advice
    assert facts.endswith("1 case failed · 1 case unsupported")


def test_all_rows_are_inside(folder: Path, page: str) -> None:
    content, rows = embedded(page), read_folder(folder).results
    assert sorted(content["case_id"]) == sorted(rows["case_id"])
    assert len(set(content["command"])) == len(read_folder(folder).cases)


def test_infinite_zero_and_missing_numbers_have_a_place(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "odd", Shape(variants=("ring", "single_device"), dtypes=("bfloat16",), reasons=()))
    path = folder / "results"
    rows = pd.read_parquet(path)
    for name, value in (("error_rel", float("inf")), ("x_single_device", float("inf")), ("error_max", 0.0)):
        rows.loc[(rows["tensor"] == "dq") & (rows["world_size"] > 2), name] = value
    rows.loc[rows["tensor"] == "dv", ["error_rel", "error_mean", "x_floor", "x_single_device", "seconds"]] = None
    rows.loc[rows["tensor"] == "lse", "error_rel"] = 0.0
    shutil.rmtree(path)
    rows.to_parquet(folder / "results.parquet")
    page = write_report(folder).path.read_text(encoding="utf-8")
    assert ">∞<" in page


def test_a_run_killed_midway_says_so(tmp_path: Path) -> None:
    shape = Shape(dtypes=("bfloat16",), world_sizes=(1, 2), seeds=(0,), record={"planned": 99, "ended": None})
    summary = write_report(write_run(tmp_path / "killed", shape, positions=False))
    page = summary.path.read_text(encoding="utf-8")
    assert "Partial run (" in page
    assert summary.lines[0].startswith("Partial run (")


@pytest.mark.parametrize("record", [None, "", "[]", "{", '{"provenance": 3, "config": [], "planned": "many"}'])
def test_a_broken_record_costs_no_report(tmp_path: Path, record: str | None) -> None:
    shape = Shape(variants=("ring",), dtypes=("bfloat16",), world_sizes=(2,), seeds=(0,), tensors=("out",))
    folder = write_run(tmp_path / "bare", shape, positions=False)
    (folder / "run.json").unlink()
    if record is not None:
        (folder / "run.json").write_text(record)
    assert write_report(folder).path.exists()


def test_a_run_without_any_numbers_is_reported(tmp_path: Path) -> None:
    summary = write_report(write_run(tmp_path / "unsupported", Shape(variants=())))
    assert "Nothing was measured" in summary.path.read_text(encoding="utf-8")


@pytest.mark.stress
def test_fifty_thousand_rows_stay_below_three_megabytes(tmp_path: Path) -> None:
    page = write_report(write_large_run(tmp_path / "large")).path.read_bytes()
    assert len(page) < LIMIT_BYTES
    assert len(embedded(page.decode())["case_id"]) == 50_000
    assert "All 50,000 rows" in page.decode()
