"""The report in a real headless Chromium: quiet, usable by mouse and keyboard, deaf to hostile text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accuracy.report.build import write_report
from tests.report.synthetic import HOSTILE, Shape, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(dtypes=("bfloat16", "float64"), world_sizes=(1, 2, 4), tensors=("out", "dq"))
    return write_report(write_run(tmp_path_factory.mktemp("run"), shape)).path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(
        variants=("single_device", HOSTILE),
        dtypes=("bfloat16",),
        world_sizes=(1, 2),
        tensors=("out",),
        reasons=(HOSTILE, HOSTILE),
        exponents={"single_device": 0.0, HOSTILE: 0.5},
        record={"command": HOSTILE, "experiment": HOSTILE, "config": {HOSTILE: HOSTILE}},
    )
    return write_report(write_run(tmp_path_factory.mktemp("hostile"), shape)).path


class Visit:
    """An open page with everything it said and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.said: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("#row-explorer tbody tr")

    def column(self, name: str) -> list[str]:
        """The shown texts of a column of the table of all rows."""
        heads = self.page.locator("#row-explorer thead th").all_inner_texts()
        place = next(place for place, text in enumerate(heads) if text.split(" ")[0] == name)
        return [
            row.locator("th, td").nth(place).inner_text()
            for row in self.page.locator("#row-explorer tbody tr:not(.more)").all()
        ]


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Visit]:
    opened = Visit(browser, report)
    yield opened
    opened.page.close()


def test_it_is_quiet_and_asks_for_nothing(visit: Visit, report: Path) -> None:
    assert visit.said == []
    assert [url for url in visit.requested if not url.startswith("data:")] == [report.as_uri()]


def test_the_test_of_quiet_hears_a_forbidden_request(browser: Any, report: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    fault = '<script>fetch("https://example.invalid/")</script><img src="https://example.invalid/x.png">'
    broken.write_text(report.read_text(encoding="utf-8").replace("</main>", f"{fault}</main>"), encoding="utf-8")
    opened = Visit(browser, broken)
    assert any("Content Security Policy" in text for text in opened.said)
    opened.page.close()


def test_a_header_sorts_numbers_both_ways(visit: Visit) -> None:
    header = visit.page.locator("#row-explorer th button", has_text="error_rel")
    for order, backwards in (("descending", True), ("ascending", False)):
        header.click()
        assert visit.page.locator("#row-explorer th[aria-sort]").get_attribute("aria-sort") == order
        numbers = [float(text) for text in visit.column("error_rel")]
        assert len(numbers) > 10
        assert numbers == sorted(numbers, reverse=backwards)
        assert numbers[0] != numbers[-1]


def test_the_keyboard_sorts_and_opens_a_row(visit: Visit) -> None:
    visit.page.locator("#row-explorer th button", has_text="x_single_device").focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.locator("th[aria-sort=descending]").inner_text().startswith("x_single_device")
    visit.page.locator("#row-explorer .row-button").first.focus()
    visit.page.keyboard.press("Enter")
    command = visit.page.locator("tr.more code").inner_text()
    assert command.startswith("accuracy variant=striped ")
    assert "problem.seqlen=1024" in command
    visit.page.keyboard.press("Space")
    assert visit.page.locator("tr.more").count() == 0


def test_filters_and_search_narrow_the_rows(visit: Visit) -> None:
    page = visit.page
    page.get_by_role("combobox", name="Tensor").select_option("dq")
    page.locator("#row-explorer").get_by_label("World size").select_option("4")
    assert set(visit.column("tensor")) == {"dq"}
    assert set(visit.column("world_size")) == {"4"}
    page.get_by_label("Search").fill("striped float64")
    assert {text.strip() for text in visit.column("variant")} == {"striped"}
    assert set(visit.column("rank")) == {"all"}
    page.get_by_role("combobox", name="Rank", exact=True).select_option("each")
    assert set(visit.column("rank")) == {"0", "1", "2", "3"}
    page.get_by_label("Search").fill("no such row")
    assert page.locator("#row-explorer [role=status]").inner_text().startswith("0 of")


def test_pages_turn(visit: Visit) -> None:
    first = visit.column("error_rel")
    visit.page.get_by_role("button", name="Next").click()
    assert "page 2" in visit.page.locator("#row-explorer [role=status]").inner_text()
    assert visit.column("error_rel") != first


def test_the_downloads_hold_every_row(visit: Visit) -> None:
    total = int(visit.page.locator("#rows-data").get_attribute("data-rows"))
    with visit.page.expect_download() as caught:
        visit.page.get_by_role("button", name="Download CSV").click()
    lines = Path(caught.value.path()).read_text().splitlines()
    assert len(lines) == total + 1
    assert lines[0].startswith("case_id,experiment,variant")
    with visit.page.expect_download() as caught:
        visit.page.get_by_role("button", name="Download JSON").click()
    assert len(json.loads(Path(caught.value.path()).read_text())) == total


def test_the_profile_by_rank_follows_its_choices(visit: Visit) -> None:
    table = visit.page.locator("#rank-explorer table")
    assert table.locator("tbody tr").count() == 4
    visit.page.locator("#rank-explorer").get_by_label("World size").select_option("2")
    assert table.locator("tbody tr").count() == 2
    before = table.locator("tbody td").first.inner_text()
    visit.page.get_by_role("combobox", name="Against").select_option("diff")
    assert table.locator("tbody td").first.inner_text() != before


def test_one_setting_is_shown_at_a_time_and_all_on_request(visit: Visit) -> None:
    panels = visit.page.locator("#growth > .panel")
    assert [panel.is_visible() for panel in panels.all()] == [True, False]
    visit.page.locator("#growth .segments button", has_text="all").click()
    assert [panel.is_visible() for panel in panels.all()] == [True, True]


def test_every_chart_has_a_name_for_a_screen_reader(visit: Visit) -> None:
    assert visit.page.locator("svg.chart").count() > 10
    shown = visit.page.locator("svg.chart:visible").count()
    assert visit.page.get_by_role("img").count() == shown
    names = visit.page.locator("svg.chart > title").evaluate_all("all => all.map(one => one.textContent)")
    assert len(names) == len(set(names))


@pytest.mark.parametrize("width", [1400, 700, 400])
def test_the_page_itself_never_scrolls_sideways(browser: Any, report: Path, width: int) -> None:
    opened = Visit(browser, report, viewport={"width": width, "height": 900})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.page.close()


def test_light_and_dark_differ_in_page_and_charts(browser: Any, report: Path) -> None:
    ink = "getComputedStyle(document.querySelector('svg.chart text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    found = []
    for scheme in ("light", "dark"):
        opened = Visit(browser, report, color_scheme=scheme)
        found.append((opened.page.evaluate(paper), opened.page.evaluate(ink)))
        opened.page.close()
    (light_paper, light_ink), (dark_paper, dark_ink) = found
    assert light_paper != dark_paper
    assert light_ink != dark_ink


def test_printing_opens_the_numbers_behind_the_charts(visit: Visit) -> None:
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert visit.page.locator("details:not([open])").count() == 0


def test_without_javascript_nothing_is_hidden_but_the_single_rows(browser: Any, report: Path) -> None:
    opened = Visit(browser, report, java_script_enabled=False)
    assert opened.page.locator("#rows table").is_visible()
    assert all(panel.is_visible() for panel in opened.page.locator("#growth > .panel").all())
    opened.page.close()


def test_a_hostile_string_does_nothing(browser: Any, hostile: Path) -> None:
    opened = Visit(browser, hostile)
    for button in opened.page.locator("#row-explorer .row-button").all()[:3]:
        button.click()
    opened.page.get_by_label("Search").fill("src=x")
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.locator("img, iframe").count() == 0
    assert opened.said == []
    assert [url for url in opened.requested if not url.startswith("data:")] == [hostile.as_uri()]
    opened.page.close()


def test_the_test_of_hostile_text_can_fail(browser: Any, tmp_path: Path) -> None:
    careless = tmp_path / "careless.html"
    careless.write_text(f'<!doctype html><p title="">{HOSTILE}</p>')
    page = browser.new_page()
    page.goto(careless.as_uri())
    assert page.evaluate("window.hacked") == 1
    page.close()
