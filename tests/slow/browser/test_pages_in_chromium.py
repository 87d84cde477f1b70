"""Pages in a real headless Chromium: what a reader with two minutes gets, at every width, in the dark, on paper."""

import re
from pathlib import Path
from typing import Any

import pytest

from accuracy.report.build import write_report
from tests.slow.browser.chromium import Visit
from tests.unit.report.synthetic import HOSTILE
from tests.unit.report.tables import run_of, shape

pytestmark = pytest.mark.browser
MOST_NODES, MOST_SCREENS, MOST_PAGES, MOST_WORDS = 4000, 6, 12, 12


@pytest.mark.parametrize("scripts", [True, False])
def test_the_first_screen_holds_what_matters_and_the_page_is_short(browser: Any, report: Path, scripts: bool) -> None:
    with Visit(browser, report, scripts=scripts) as visit:
        page = visit.page
        assert page.locator("#badge").inner_text() == "BUG"
        for part in ("h1", *([".key-picture svg", ".matrix table"] if scripts else [])):
            box = page.locator(part).bounding_box()
            assert 0 <= box["y"] <= box["y"] + box["height"] <= 900
        assert len(re.findall(rb"/Type\s*/Page[^s]", page.pdf(prefer_css_page_size=True))) <= MOST_PAGES
        assert page.locator("#bar").is_visible() == scripts
        if not scripts:
            page.locator("#method summary").first.click()
            assert page.locator("#method dl").first.is_visible()
            return
        assert page.evaluate("document.documentElement.scrollHeight / innerHeight") <= MOST_SCREENS
        assert page.locator("*").count() <= MOST_NODES
        assert not page.locator("#method dl").is_visible()
        page.locator("nav a[href='#method']").click()
        page.locator("#method dl").wait_for(state="visible")
        page.locator("#why > details > summary").last.click()
        table = page.locator("#why > details table").last
        column = "table => [...table.tBodies[0].rows].map(row => row.cells[7].innerText)"
        before = table.evaluate(column)
        for way in ("descending", "ascending"):
            table.locator("th button").nth(7).click()
            assert table.locator("th").nth(7).get_attribute("aria-sort") == way
        assert sorted(table.evaluate(column), key=float) == table.evaluate(column)
        assert sorted(before) == sorted(table.evaluate(column))


FIRST_CHART = "Math.min(...[...document.querySelectorAll('main svg')].map((each) => each.getBoundingClientRect().top))"
BADGES = [("report", "BUG"), ("drifted", "ROUNDING"), ("hostile", "EXCESS ROUNDING")]


@pytest.mark.parametrize(("name", "badge"), BADGES)
def test_a_phone_s_first_screen_has_badge_title_numbers_and_the_first_chart(
    browser: Any, request: pytest.FixtureRequest, name: str, badge: str
) -> None:
    with Visit(browser, request.getfixturevalue(name), width=390, height=844) as visit:
        page = visit.page
        assert page.locator("#badge").inner_text() == badge
        assert 0 < len(page.locator("#title").inner_text().split()) <= MOST_WORDS
        assert 3 <= page.locator(".tiles > div").count() <= 4
        assert 0 < page.evaluate(FIRST_CHART) < 844
        filters = page.locator("#filters")
        assert not page.locator("#bar select").first.is_visible()
        filters.click()
        assert page.locator("#bar select").first.is_visible()
        assert filters.get_attribute("aria-expanded") == "true"
        assert visit.said == []


def test_a_drift_run_shows_each_pair_s_drift_over_its_limit(browser: Any, drifted: Path) -> None:
    with Visit(browser, drifted) as visit:
        drift = visit.page.locator("#drift")
        heads = drift.locator(".matrix thead th").all_inner_texts()
        rows = [row.locator("th, td").all_inner_texts() for row in drift.locator(".matrix tbody tr").all()]
        cells = {row[0]: dict(zip(heads, row, strict=True)) for row in rows}
        assert len(cells) == 2
        (far,) = (row for name, row in cells.items() if name.startswith("zigzag@4"))
        (near,) = (row for name, row in cells.items() if name.startswith("ring@4"))
        assert far["dv"].split() == ["\N{BLACK UP-POINTING TRIANGLE}", "1.50", "3.0e-3"]
        assert far["out"].split() == near["dv"].split() == ["0.500", "1.0e-3"]
        assert near["out"] == "equal"
        assert far["nearer"] == "b: dv"
        assert visit.page.locator(".tiles dd").first.inner_text() == "1.50\N{MULTIPLICATION SIGN}"


def test_a_proven_cause_has_no_exponent_beside_it_and_a_chart_is_saved(browser: Any, proven: Path) -> None:
    with Visit(browser, proven) as visit:
        told = visit.page.locator("#view-growth .note").all_inner_texts()
        assert [text for text in told if "steps" in text or "W^" in text] == []
        panels = visit.page.locator("#view-growth .panels figure h3").all_inner_texts()
        assert panels == ["dk", "out", "dq", "dv", "lse", "delta"]  # of the one variant
        visit.page.locator("#view-growth-dk summary").click()
        for kind, first in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
            with visit.page.expect_download() as loaded:
                visit.page.locator("#view-growth-dk").get_by_role("button", name=kind).click()
            assert Path(loaded.value.path()).read_bytes().startswith(first)
        visit.page.locator("#view-growth-dk").get_by_role("button", name="Copy link").click()
        assert "tensor=dk" in (visit.page.locator("#view-growth-dk .offered code").text_content() or "")


def test_charts_that_say_nothing_are_left_out_and_commands_copied(browser: Any, report: Path, tmp_path: Path) -> None:
    with Visit(browser, report) as visit:
        assert visit.page.locator("#view-cost").count() == 1
        box = visit.page.locator(".advice pre.command code")
        assert box.inner_text() == "accuracy experiment=diagnose variant=ring"
        assert visit.page.locator(".advice").get_by_role("button", name="Copy").is_visible()
        assert visit.page.locator("#environment").get_by_role("button", name="Copy").count() == 0
    run_of(tmp_path, shape(variants=("ring",), exponents={"ring": 0.2, "single_device": 0.0}))
    with Visit(browser, write_report(tmp_path).path) as visit:
        assert visit.page.locator("#view-growth").bounding_box()["width"] > 1000
        assert visit.page.locator("#view-cost, #view-setting, #claims").count() == 0


OUTSIDE = """(frames) => frames.flatMap((frame) => {
  const outer = frame.getBoundingClientRect();
  return [...frame.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width > 0 && (box.left < outer.left - 1 || box.right > outer.right + 1);
  }).map((text) => text.textContent);
})"""  # letters that are cut; a pixel of rounding


@pytest.mark.parametrize("width", [390, 700, 1440])
def test_no_label_of_a_chart_is_cut(browser: Any, report: Path, width: int) -> None:
    with Visit(browser, report, width=width) as visit:
        assert visit.page.locator("svg.live").count() >= 3
        assert visit.page.locator("svg.live").evaluate_all(OUTSIDE) == []


def test_a_page_is_quiet_asks_for_nothing_never_scrolls_sideways_and_is_readable_in_light_and_dark(
    browser: Any, report: Path
) -> None:
    found = []
    for scheme in ("light", "dark"):
        with Visit(browser, report, color_scheme=scheme) as opened:
            for width in (1440, 700, 390):
                opened.page.set_viewport_size({"width": width, "height": 900})
                assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
            assert opened.is_quiet(report)
            paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
            of_text = "getComputedStyle(document.querySelector('svg.live text'))"
            lines = opened.page.locator("svg.live [aria-label=line] path")
            strokes = {*lines.evaluate_all("all => all.map(each => getComputedStyle(each).stroke)")}
            assert (len(strokes) >= 3, paper in strokes) == (True, False)
            inks = (opened.page.evaluate(f"{of_text}.{each}") for each in ("fill", "backgroundColor"))
            found.append((paper, *inks))
    (light, light_ink, _), (dark, dark_ink, _) = found
    assert light != dark
    assert light_ink != dark_ink
    assert all(ink not in (paper, ground) for paper, ink, ground in found)


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
