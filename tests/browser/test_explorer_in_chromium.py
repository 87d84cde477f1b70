"""The explorer in a real headless Chromium: one state for all views, held to the table that it draws."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from accuracy.core.number import geometric_mean, plain
from accuracy.report.build import write_report
from tests.browser.chromium import Visit
from tests.report import tables
from tests.report.synthetic import HOSTILE_SHAPE, write_run
from tests.report.tables import shape

pytestmark = pytest.mark.browser
MOST_NODES, MOST_SCREENS = 4000, 6
CASE = {"dtype": "bfloat16", "tensor": "dk", "variant": "ring", "ranks": "4"}  # of the headline: `tables.logic`


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dk of ring is wrong by half; three dtypes, and errors along the sequence."""
    made = write_run(tmp_path_factory.mktemp("bug"), shape(dtypes=("float32", "bfloat16", "float64")))
    for path in (made / "results").glob("*.parquet"):
        table = pq.read_table(path)
        changed = tables.logic(table.to_pandas())
        pq.write_table(pa.Table.from_pandas(changed, table.schema, preserve_index=False), path)
    write_report(made)
    return made


@pytest.fixture(scope="module")
def rows(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "results")


def opened(browser: Any, path: Path, **options: Any) -> Visit:
    return Visit(browser, path, False, viewport={"width": 1440, "height": 900}, **options)


@pytest.fixture
def visit(browser: Any, folder: Path) -> Iterator[Visit]:
    with opened(browser, folder / "report.html") as made:
        yield made


def not_of(visit: Visit, case: dict[str, str]) -> list[str]:
    """Views that show another case than this one."""
    wrong = [name for name, value in case.items() if visit.chosen()[name] != value]
    page = visit.page
    titles = {each: page.locator(f"#view-{each} h3").inner_text() for each in ("growth", "rank", "token", "cost")}
    wrong += [each for each, text in titles.items() if not text.startswith(case["tensor"])]
    wrong += [each for each in ("growth", "rank", "token") if f" of {case['variant']}," not in titles[each]]
    wrong += [] if f"{case['ranks']} ranks" in titles["rank"] else ["rank's ranks"]
    pressed = page.locator("#matrix [aria-pressed=true]").evaluate_all("all => all.map(each => each.dataset.case)")
    wrong += [] if pressed == [f"{case['variant']}|{case['tensor']}"] else ["matrix"]
    page.locator("#rows > details").evaluate("part => { part.open = true; }")
    page.wait_for_selector("#row-explorer tbody tr")
    for name, value in (("variant", "variant"), ("tensor", "tensor"), ("world_size", "ranks"), ("setting", "dtype")):
        shown = {text.split(" ")[0] for text in visit.column(name)}
        wrong += [] if shown == {case[value]} else [f"rows: {name}"]
    return wrong


def test_the_headlines_case_is_what_every_view_shows(browser: Any, visit: Visit, folder: Path, tmp_path: Path) -> None:
    assert "dk has" in visit.page.locator("h1").inner_text()
    assert not_of(visit, CASE) == []
    assert visit.said == []
    wrong = tmp_path / "wrong.html"  # of a page that opens on another case it is seen
    wrong.write_text(re.sub(r"(data-preset=.*?tensor&#34;: &#34;)dk", r"\1dq", (folder / "report.html").read_text()))
    with opened(browser, wrong) as made:
        assert {"tensor", "growth", "rank", "token", "cost", "matrix"} <= set(not_of(made, CASE))


def test_a_cell_of_the_matrix_drives_every_view_and_the_address_keeps_it(
    browser: Any, visit: Visit, folder: Path
) -> None:
    other = {**CASE, "tensor": "dq", "variant": "zigzag"}
    visit.page.locator("#matrix button[data-case='zigzag|dq']").press("Enter")
    visit.settled()
    assert not_of(visit, other) == []
    again = browser.new_page()
    again.goto(visit.page.url)
    again.wait_for_selector("#explorer[data-drawn]")
    assert again.locator("#view-growth h3").inner_text() == visit.page.locator("#view-growth h3").inner_text()
    again.close()
    visit.page.get_by_role("button", name="Reset").click()
    visit.settled()
    assert not_of(visit, CASE) == []


def test_every_measured_setting_tensor_and_measure_is_drawn(visit: Visit) -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        visit.choose("dtype", dtype)
        for tensor in ("lse", "dk"):
            visit.choose("tensor", tensor)
            assert visit.page.locator(".view svg.live").count() == 4
    offered = visit.page.get_by_label("measure").locator("option")
    for measure in offered.evaluate_all("all => all.map(one => one.value)"):
        visit.choose("measure", measure)
        assert visit.page.locator("#view-rank svg.live").count() == 1
    assert visit.said == []


def test_a_chart_has_the_numbers_of_the_table(visit: Visit, rows: pd.DataFrame) -> None:
    visit.choose("variant", "zigzag")
    visit.page.locator("#view-growth summary").click()
    shown = visit.page.locator("#view-growth tbody tr", has_text="zigzag")
    shown.first.wait_for()  # it is drawn when it is opened
    mine = rows[(rows["variant"] == "zigzag") & (rows["dtype"] == "bfloat16") & (rows["tensor"] == "dk")]
    whole = mine[mine["rank"] == -1].groupby("world_size")["x_single_device"]
    expected = [[str(size), *map(plain, (geometric_mean(got), got.min(), got.max()))] for size, got in whole]
    assert [row.locator("td").all_inner_texts() for row in shown.all()] == expected


def test_hovering_and_arrow_keys_read_a_charts_values_with_their_seeds(visit: Visit) -> None:
    visit.page.locator("#view-rank svg.live").hover()
    assert "rank" in visit.page.locator("#view-rank svg [aria-label=tip]").text_content()
    visit.page.locator("#view-growth .plot").focus()
    for _ in range(2):
        visit.page.keyboard.press("ArrowRight")
    said = visit.page.locator("#view-growth [role=status]").inner_text()
    assert re.match(r"ring, \d ranks? error, times single device: \d+ 3 seeds: \d+ to \d+ relative error ", said)
    assert "3 seeds" in visit.page.locator("#view-growth svg [aria-label=tip]").text_content()
    visit.page.keyboard.press("ArrowDown")
    assert not visit.page.locator("#view-growth [role=status]").inner_text().startswith("ring,")


def test_another_report_lies_under_this_one_as_dotted_lines_and_runs_nothing(
    visit: Visit, folder: Path, tmp_path: Path
) -> None:
    dotted = visit.page.locator("#view-growth svg g[stroke-dasharray='1 4'] path")
    assert dotted.count() == 0
    (tmp_path / "no.html").write_text("<p>nothing</p>")
    visit.page.locator("#bar input[type=file]").set_input_files(tmp_path / "no.html")
    visit.page.locator("#shown", has_text="no.html holds no rows of a report").wait_for()
    (tmp_path / "before.html").write_text((folder / "report.html").read_text())
    visit.page.locator("#bar input[type=file]").set_input_files(tmp_path / "before.html")
    visit.page.locator("#shown", has_text="Dotted: before").wait_for()
    dotted.first.wait_for(state="attached")
    visit.page.get_by_role("button", name="Close it").click()
    visit.settled()
    assert dotted.count() == 0
    hostile = write_report(write_run(tmp_path / "hostile", HOSTILE_SHAPE)).path  # does nothing when it is opened
    visit.page.locator("#bar input[type=file]").set_input_files(hostile)
    visit.page.locator("#shown", has_text="Dotted").wait_for()
    visit.settled()
    assert visit.page.evaluate("window.hacked") is None
    assert visit.said == []


def test_a_card_of_why_sets_the_explorer(visit: Visit) -> None:
    visit.choose("tensor", "out")
    visit.page.locator("#why a.show").first.click()
    visit.page.wait_for_selector("#explorer[data-drawn*='tensor=dk']")
    assert {name: visit.chosen()[name] for name in CASE} == CASE


def test_the_page_is_short_and_a_static_table_sorts(visit: Visit) -> None:
    height = visit.page.evaluate("document.documentElement.scrollHeight / innerHeight")
    assert height <= MOST_SCREENS
    assert visit.page.locator("*").count() <= MOST_NODES
    visit.page.locator("#take summary").click()
    table = visit.page.locator("#take table").first
    column = "table => [...table.tBodies[0].rows].map(row => Number(row.cells[0].innerText))"
    before = table.evaluate(column)
    table.locator("th button").first.click()
    assert table.evaluate(column) == sorted(before, reverse=True) != before
