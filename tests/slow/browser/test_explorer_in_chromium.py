"""The explorer in a real headless Chromium: one state for all views, held to the table that it draws."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.core.number import geometric_mean, plain
from accuracy.report.build import write_report
from tests.slow.browser.chromium import Visit
from tests.unit.report.synthetic import write_large_run

pytestmark = pytest.mark.browser
CASE = {"dtype": "bfloat16", "tensor": "dk", "variant": "ring", "ranks": "2"}  # of the headline: `tables.logic`


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Visit]:
    with Visit(browser, report) as made:
        yield made


def not_of(visit: Visit, case: dict[str, str]) -> list[str]:
    page = visit.page
    wrong = [name for name, value in case.items() if visit.chosen()[name] != value]
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


def test_the_headlines_case_is_what_every_view_shows(browser: Any, visit: Visit, report: Path, tmp_path: Path) -> None:
    assert "ring: dk" in visit.page.locator("#title").inner_text()
    assert "dk of ring, bfloat16, 2 ranks" in visit.page.locator(".tiles").inner_text()
    assert not_of(visit, CASE) == []
    wrong = tmp_path / "wrong.html"  # of a page that opens on another case it is seen
    wrong.write_text(re.sub(r"(data-preset=.*?tensor&#34;: &#34;)dk", r"\1dq", report.read_text()))
    with Visit(browser, wrong) as made:
        assert {"tensor", "growth", "rank", "token", "cost", "matrix"} <= set(not_of(made, CASE))


def test_the_matrix_and_a_card_of_why_drive_every_view_and_the_address_keeps_it(browser: Any, visit: Visit) -> None:
    visit.page.locator("#matrix button[data-case='zigzag|dq']").press("Enter")
    visit.settled()
    assert not_of(visit, {**CASE, "tensor": "dq", "variant": "zigzag"}) == []
    again = browser.new_page()
    again.goto(visit.page.url)
    again.wait_for_selector("#explorer[data-drawn]")
    assert again.locator("#view-growth h3").inner_text() == visit.page.locator("#view-growth h3").inner_text()
    again.close()
    visit.page.get_by_role("button", name="Reset").click()
    visit.settled()
    assert not_of(visit, CASE) == []
    visit.choose(tensor="out")
    visit.page.locator("#why a.show").first.click()
    visit.page.wait_for_selector("#explorer[data-drawn*='tensor=dk']")
    assert {name: visit.chosen()[name] for name in CASE} == CASE


def test_every_setting_tensor_and_measure_is_drawn_with_the_numbers_of_the_table(visit: Visit, folder: Path) -> None:
    for dtype in ("float32", "float64", "bfloat16"):
        for tensor in ("lse", "dk"):
            visit.choose(dtype=dtype, tensor=tensor)
            assert visit.page.locator(".view svg.live").count() == 4
    visit.choose(variant="zigzag")
    visit.page.locator("#view-growth summary").click()
    shown = visit.page.locator("#view-growth tbody tr", has_text="zigzag")
    shown.first.wait_for()  # it is drawn when it is opened
    mine = pd.read_parquet(folder / "results.parquet").query("variant == 'zigzag' and dtype == 'bfloat16'")
    whole = mine.query("tensor == 'dk' and rank == -1").groupby("world_size")["x_single_device"]
    expected = [[str(size), *map(plain, (geometric_mean(got), got.min(), got.max()))] for size, got in whole]
    assert [row.locator("td").all_inner_texts() for row in shown.all()] == expected
    offered = visit.page.get_by_label("measure").locator("option")
    for measure in offered.evaluate_all("all => all.map(one => one.value)"):
        visit.choose(measure=measure)
        assert visit.page.locator("#view-rank svg.live").count() == 1
    assert visit.said == []


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


def test_another_report_lies_dotted_under_this_one(visit: Visit, report: Path, hostile: Path, tmp_path: Path) -> None:
    dotted = visit.page.locator("#view-growth svg g[stroke-dasharray='1 4'] path")
    file, shown = visit.page.locator("#bar input[type=file]"), visit.page.locator("#shown")
    assert dotted.count() == 0
    (tmp_path / "no.html").write_text("<p>nothing</p>")
    file.set_input_files(tmp_path / "no.html")
    shown.filter(has_text="no.html holds no rows of a report").wait_for()
    (tmp_path / "before.html").write_text(report.read_text())
    file.set_input_files(tmp_path / "before.html")
    shown.filter(has_text="Dotted: before").wait_for()
    dotted.first.wait_for(state="attached")
    visit.page.get_by_role("button", name="Close it").click()
    visit.settled()
    assert dotted.count() == 0
    file.set_input_files(hostile)  # does nothing when it is opened
    shown.filter(has_text="Dotted").wait_for()
    visit.settled()
    assert visit.page.evaluate("window.hacked") is None
    assert visit.said == []


def test_the_keyboard_turns_sorts_and_opens_rows_and_downloads_hold_what_is_shown(browser: Any, report: Path) -> None:
    def downloaded(button: str) -> list[str]:
        with page.expect_download() as caught:
            page.get_by_role("button", name=button).click()
        return Path(caught.value.path()).read_text().splitlines()

    with Visit(browser, report, unfold=True) as visit:
        page = visit.page
        lines = downloaded("Download what is shown")
        tensor = lines[0].split(",").index("tensor")
        assert {line.split(",")[tensor] for line in lines[1:]} == {"dk"}
        for scope in ("case", "all"):
            visit.rows(scope)
            shown = int(visit.status().split(" ")[0].replace(",", ""))
            head, *lines = downloaded("Download CSV")
            assert head.startswith("case_id,experiment,variant")
            assert len(lines) == len(json.loads("".join(downloaded("Download JSON")))) == shown
        first = visit.column("error_rel")
        page.get_by_role("button", name="Next").click()
        assert "page 2" in visit.status()
        assert visit.column("error_rel") != first
        page.locator("#row-explorer th button", has_text="x_single_device").focus()
        page.keyboard.press("Enter")
        assert page.locator("#row-explorer th[aria-sort=descending]").inner_text().startswith("x_single_device")
        page.locator("#row-explorer .row-button").first.focus()
        page.keyboard.press("Enter")
        command = page.locator("tr.more code").inner_text()
        assert command.startswith("accuracy variant=ring ")
        assert "problem.seqlen=1024" in command
        page.keyboard.press("Space")
        assert page.locator("tr.more").count() == 0


def test_of_fifty_thousand_rows_every_one_is_there_sorted_and_filtered(browser: Any, tmp_path: Path) -> None:
    path = write_report(write_large_run(tmp_path)).path
    results = pd.read_parquet(tmp_path / "results.parquet")
    with Visit(browser, path, unfold=True) as visit:
        page = visit.page
        visit.rows("all")
        assert visit.status() == "50,000 of 50,000 rows, page 1 of 1000"
        for name, order in (("error_max", "descending"), ("error_max", "ascending"), ("worst_token", "descending")):
            page.locator("#row-explorer th button", has_text=name).click()
            assert page.locator("#row-explorer th[aria-sort]").get_attribute("aria-sort") == order
            expected = results[name].sort_values(ascending=order == "ascending").head(50)
            shown = [float(text) for text in visit.column(name)]
            assert shown == pytest.approx(expected.tolist(), rel=5.6e-3, abs=0)  # three digits shown of four
        visit.choose(dtype="float16", tensor="dq", variant="zigzag", ranks="64", measure="error_max")
        visit.rows("case")
        wanted = results.query("tensor == 'dq' and world_size == 64 and variant == 'zigzag' and dtype == 'float16'")
        assert len(wanted) > 50
        assert visit.status().startswith(f"{len(wanted):,} of 50,000 rows")
        assert set(visit.column("variant")) == {"zigzag"}
        page.get_by_role("combobox", name="Rank", exact=True).select_option("each")
        assert visit.status().startswith(f"{(wanted['rank'] >= 0).sum():,} of 50,000 rows")
        page.get_by_label("Search").fill("no such row")
        assert visit.status().startswith("0 of")
        row = page.locator("#view-rank tbody tr", has_text="zigzag").last
        assert row.locator("td").first.inner_text() == "63"
        expected = wanted.loc[wanted["rank"] == 63, "error_max"].max()
        assert float(row.locator("td").nth(1).inner_text()) == pytest.approx(expected, rel=5.6e-3)
