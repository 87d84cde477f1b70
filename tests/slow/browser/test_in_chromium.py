"""Pages in a real headless Chromium: each kind at every width, in light and dark, on paper; and the explorer, one state
for all views, held to the table that it draws."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from accuracy.core.number import geometric_mean, plain
from tests.slow.browser.chromium import Visit
from tests.unit.report.synthetic import HOSTILE

pytestmark = pytest.mark.browser
MOST_NODES, MOST_SCREENS, MOST_PAGES, MOST_WORDS = 4000, 6, 12, 12
BADGES = {"report": "BUG", "drifted": "ROUNDING", "proven": "BUG", "hostile": "EXCESS ROUNDING"}
FIRST_CHART = "Math.min(...[...document.querySelectorAll('main svg')].map((each) => each.getBoundingClientRect().top))"
OUTSIDE = """(frames) => frames.flatMap((frame) => {
  const outer = frame.getBoundingClientRect();
  return [...frame.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width > 0 && (box.left < outer.left - 1 || box.right > outer.right + 1);
  }).map((text) => text.textContent);
})"""  # letters that are cut; a pixel of rounding


@pytest.mark.parametrize("name", BADGES)
def test_a_page_is_quiet_asks_for_nothing_fits_a_desk_and_a_phone_and_is_readable_in_light_and_dark(
    browser: Any, request: pytest.FixtureRequest, name: str
) -> None:
    path, found = request.getfixturevalue(name), []
    for scheme, width in (("light", 1440), ("dark", 390)):
        with Visit(browser, path, color_scheme=scheme, width=width) as visit:
            page = visit.page
            assert page.locator("#badge").inner_text() == BADGES[name]
            assert 0 < len(page.locator("#title").inner_text().split()) <= MOST_WORDS or name == "hostile"
            assert 0 < page.evaluate(FIRST_CHART) < 900
            assert name == "hostile" or page.locator("svg.live").evaluate_all(OUTSIDE) == []
            assert page.locator("#bar select").first.is_visible() == (width == 1440)
            assert page.evaluate("window.hacked") is None
            for each in (width, 700):
                page.set_viewport_size({"width": each, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= each
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            ink = page.evaluate("getComputedStyle(document.querySelector('svg.live text')).fill")
            lines = page.locator("svg.live [aria-label=line] path")
            assert paper not in {ink, *lines.evaluate_all("all => all.map(each => getComputedStyle(each).stroke)")}
            assert visit.is_quiet(path)
            found.append((paper, ink))
    assert all(light != dark for light, dark in zip(*found, strict=True))


def test_the_first_screen_holds_what_matters_the_page_is_short_and_reads_without_scripts(
    browser: Any, report: Path
) -> None:
    with Visit(browser, report, scripts=False) as visit:
        assert visit.page.locator("#badge").inner_text() == "BUG"
        assert len(re.findall(rb"/Type\s*/Page[^s]", visit.page.pdf(prefer_css_page_size=True))) <= MOST_PAGES
        assert not visit.page.locator("#bar").is_visible()
        visit.page.locator("#method summary").first.click()
        assert visit.page.locator("#method dl").first.is_visible()
    with Visit(browser, report) as visit:
        page = visit.page
        for part in ("h1", ".key-picture svg", ".matrix table"):
            box = page.locator(part).bounding_box()
            assert 0 <= box["y"] <= box["y"] + box["height"] <= 900
        assert page.evaluate("document.documentElement.scrollHeight / innerHeight") <= MOST_SCREENS
        assert page.locator("*").count() <= MOST_NODES
        page.locator("nav a[href='#method']").click()
        page.locator("#method dl").wait_for(state="visible")
        page.locator("#why > details > summary").last.click()
        table = page.locator("#why > details table").last
        for way, sign in (("descending", -1), ("ascending", 1)):
            table.locator("th button").nth(7).click()
            shown = table.evaluate("table => [...table.tBodies[0].rows].map(row => row.cells[7].innerText)")
            assert table.locator("th").nth(7).get_attribute("aria-sort") == way
            assert shown == sorted(shown, key=lambda text: sign * float(text))


def test_a_proven_cause_has_no_exponent_beside_it_and_a_chart_is_saved(browser: Any, proven: Path) -> None:
    with Visit(browser, proven) as visit:
        told = visit.page.locator("#view-growth .note").all_inner_texts()
        assert [text for text in told if "steps" in text or "W^" in text] == []
        chart = visit.page.locator("#view-growth-dk")
        chart.locator("summary").click()
        for kind, first in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
            with visit.page.expect_download() as loaded:
                chart.get_by_role("button", name=kind).click()
            assert Path(loaded.value.path()).read_bytes().startswith(first)
        chart.get_by_role("button", name="Copy link").click()
        assert "tensor=dk" in (chart.locator(".offered code").text_content() or "")


def test_a_request_is_heard_and_hostile_text_is_text(browser: Any, report: Path, hostile: Path, tmp_path: Path) -> None:
    broken, careless = tmp_path / "broken.html", tmp_path / "careless.html"
    fault = '<script>fetch("https://example.invalid/")</script><img src="https://example.invalid/x.png">'
    broken.write_text(report.read_text(encoding="utf-8").replace("</main>", f"{fault}</main>"), encoding="utf-8")
    with Visit(browser, broken) as opened:
        assert any("Content Security Policy" in text for text in opened.said)
    with Visit(browser, hostile, unfold=True) as opened:
        for button in opened.page.locator("#row-explorer .row-button").all()[:3]:
            button.click()
        opened.page.get_by_label("Search").fill("src=x")
        assert opened.page.evaluate("window.hacked") is None
        assert opened.page.locator("img, iframe").count() == 0
        assert opened.is_quiet(hostile)
    careless.write_text(f'<!doctype html><p title="">{HOSTILE}</p>')  # the test can fail
    page = browser.new_page()
    page.goto(careless.as_uri())
    assert page.evaluate("window.hacked") == 1
    page.close()


CASE = {"dtype": "bfloat16", "tensor": "dk", "variant": "ring", "ranks": "2"}  # of the headline: `tables.logic`


def not_of(visit: Visit, case: dict[str, str]) -> list[str]:
    """The views that show another case."""
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


def test_every_view_shows_the_headline_s_case_then_the_one_that_is_chosen_and_the_address_keeps_it(
    browser: Any, report: Path, tmp_path: Path
) -> None:
    with Visit(browser, report) as visit:
        assert "dk of ring, bfloat16, 2 ranks" in visit.page.locator(".tiles").inner_text()
        assert not_of(visit, CASE) == []
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
    wrong = tmp_path / "wrong.html"  # of a page that opens on another case it is seen
    wrong.write_text(re.sub(r"(data-preset=.*?tensor&#34;: &#34;)dk", r"\1dq", report.read_text()))
    with Visit(browser, wrong) as visit:
        assert {"tensor", "growth", "rank", "token", "cost", "matrix"} <= set(not_of(visit, CASE))


def test_charts_have_the_table_s_numbers_also_under_the_arrow_keys_and_another_report_lies_dotted_below(
    browser: Any, report: Path, folder: Path, hostile: Path
) -> None:
    with Visit(browser, report) as visit:
        page = visit.page
        page.locator("#view-growth .plot").focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        said = page.locator("#view-growth [role=status]").inner_text()
        assert re.match(r"ring, \d ranks? error, times single device: \d+ 3 seeds: \d+ to \d+ relative error ", said)
        visit.choose(dtype="bfloat16", tensor="dk", variant="zigzag")
        page.locator("#view-growth summary").click()
        shown = page.locator("#view-growth tbody tr", has_text="zigzag")
        shown.first.wait_for()  # it is drawn when it is opened
        mine = pd.read_parquet(folder / "results.parquet").query("variant == 'zigzag' and dtype == 'bfloat16'")
        whole = mine.query("tensor == 'dk' and rank == -1").groupby("world_size")["x_single_device"]
        expected = [[str(size), *map(plain, (geometric_mean(got), got.min(), got.max()))] for size, got in whole]
        assert [row.locator("td").all_inner_texts() for row in shown.all()] == expected
        offered = page.get_by_label("measure").locator("option")
        for measure in offered.evaluate_all("all => all.map(one => one.value)"):
            visit.choose(measure=measure)
            assert page.locator("#view-rank svg.live").count() == 1
        visit.choose(measure=offered.first.get_attribute("value"))
        dotted = page.locator("#view-growth svg g[stroke-dasharray='1 4'] path")
        assert dotted.count() == 0
        for other in (report, hostile):  # the latter does nothing when it is opened
            page.locator("#bar input[type=file]").set_input_files(other)
            page.locator("#shown", has_text=f"Dotted: {other.stem}").wait_for()
            visit.settled()
            assert dotted.count() > 0
        assert page.evaluate("window.hacked") is None
        assert visit.said == []


def test_rows_are_sorted_filtered_opened_by_keyboard_and_downloaded_as_the_table_has_them(
    browser: Any, report: Path, folder: Path
) -> None:
    def downloaded(button: str) -> list[str]:
        with page.expect_download() as caught:
            page.get_by_role("button", name=button).click()
        return Path(caught.value.path()).read_text().splitlines()

    results = pd.read_parquet(folder / "results.parquet")
    with Visit(browser, report, unfold=True) as visit:
        page = visit.page
        visit.rows("all")
        assert visit.status().startswith(f"{len(results):,} of {len(results):,} rows, page 1 of ")
        for order in ("descending", "ascending"):
            page.locator("#row-explorer th button", has_text="error_max").click()
            assert page.locator("#row-explorer th[aria-sort]").get_attribute("aria-sort") == order
            expected = results["error_max"].sort_values(ascending=order == "ascending").head(50)
            shown = [float(text) for text in visit.column("error_max")]
            assert shown == pytest.approx(expected.tolist(), rel=5.6e-3, abs=0)  # three digits shown of four
        page.get_by_role("button", name="Next").click()
        assert "page 2" in visit.status()
        visit.choose(dtype="float32", tensor="dq", variant="zigzag", ranks="4")
        visit.rows("case")
        wanted = results.query("tensor == 'dq' and world_size == 4 and variant == 'zigzag' and dtype == 'float32'")
        assert visit.status().startswith(f"{len(wanted):,} of {len(results):,} rows")
        head, *lines = downloaded("Download CSV")
        assert head.startswith("case_id,experiment,variant")
        assert len(lines) == len(json.loads("".join(downloaded("Download JSON")))) == len(wanted)
        page.locator("#row-explorer .row-button").first.focus()
        page.keyboard.press("Enter")
        command = page.locator("tr.more code").inner_text()
        assert command.startswith("accuracy variant=zigzag ")
        assert "problem.seqlen=1024" in command
        page.get_by_label("Search").fill("no such row")
        assert visit.status().startswith("0 of")
