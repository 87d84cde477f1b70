"""The first screen in a real headless Chromium: what a reader with two minutes gets, at every width, and on paper."""

import re
from pathlib import Path
from typing import Any

import pytest

from accuracy.report.build import write_report
from tests.browser.chromium import Visit
from tests.report import tables
from tests.report.tables import run_of, shape

pytestmark = pytest.mark.browser
WIDE = "a_variant_of_a_very_long_name_that_no_margin_holds_in_one_line"
MOST_PAGES = 12


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A logic bug, three dtypes, eight ranks, a long name."""
    folder = tmp_path_factory.mktemp("bug")
    variants = ("single_device", "ring", "zigzag", "llama3", WIDE)
    exponents = dict.fromkeys(variants, 0.0)
    made = shape(
        variants=variants, dtypes=("float32", "bfloat16", "float64"), world_sizes=(1, 2, 8), exponents=exponents
    )
    run_of(folder, made, tables.logic)
    return write_report(folder).path


def opened(browser: Any, report: Path, width: int = 1440, scheme: str = "light", scripts: bool = True) -> Visit:
    size = {"width": width, "height": 900}
    return Visit(browser, report, False, viewport=size, color_scheme=scheme, java_script_enabled=scripts)


@pytest.mark.parametrize("scripts", [True, False])
def test_the_first_screen_holds_headline_picture_and_matrix_and_prints_short(
    browser: Any, report: Path, scripts: bool
) -> None:
    with opened(browser, report, scripts=scripts) as visit:
        assert visit.page.locator("h1").inner_text().startswith("ring: dk is wrong at any precision.")
        for part in ("h1", ".key-picture svg", ".matrix table"):
            box = visit.page.locator(part).bounding_box()
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 900
        printed = visit.page.pdf(prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) <= MOST_PAGES


@pytest.mark.parametrize("width", [390, 700, 1440])
def test_no_label_of_a_chart_is_cut(browser: Any, report: Path, width: int) -> None:
    """Letters of every chart are inside of its frame, which is inside of the page."""
    outside = """(frames) => frames.flatMap((frame) => {
      const outer = frame.getBoundingClientRect();
      return [...frame.querySelectorAll("text")].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.width > 0 && (box.left < outer.left - 1 || box.right > outer.right + 1);
      }).map((text) => text.textContent);
    })"""  # a pixel of rounding
    with opened(browser, report, width) as visit:
        assert visit.page.locator("svg.live").count() >= 3
        assert visit.page.locator("svg.live").evaluate_all(outside) == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_is_folded_opens_without_javascript_and_by_a_link(browser: Any, report: Path) -> None:
    with opened(browser, report, scripts=False) as visit:
        visit.page.locator("#rows summary").first.click()
        assert visit.page.locator("#rows table").is_visible()
    with opened(browser, report) as visit:
        assert not visit.page.locator("#method dl").is_visible()
        visit.page.locator("nav a[href='#method']").click()
        visit.page.locator("#method dl").wait_for(state="visible")


LINES = """(frames) => frames.flatMap((frame) => {
  let ground = frame;
  while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  const [rule, border] = ["--rule", "--border"].map((name) => {
    frame.style.color = `var(${name})`;
    return getComputedStyle(frame).color;
  });
  frame.style.color = "";
  const paper = getComputedStyle(ground).backgroundColor;
  const drawn = [...frame.querySelectorAll("path, line, circle, use")];
  return drawn.filter((part) => !part.closest("[aria-label=tip]")).map((line) => {
    const style = getComputedStyle(line);
    const dot = style.stroke === paper && style.fill !== "none";  // in a thin ring
    let opacity = Number(dot ? style.fillOpacity : style.strokeOpacity);
    for (let part = line; part !== frame; part = part.parentElement) opacity *= Number(getComputedStyle(part).opacity);
    return { stroke: dot ? style.fill : style.stroke, opacity, paper };
  }).filter(({ stroke }) => !["none", rule, border].includes(stroke));
})"""
PLANTED = """(frame) => {
  for (const [stroke, opacity] of [["#8a8a8a", 0.3], ["#88888855", 1], ["Canvas", 1]]) {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    Object.assign(line.style, { stroke, opacity, fill: "none" });
    frame.append(line);
  }
}"""


def contrast(line: dict[str, Any]) -> float:
    """WCAG 2's contrast of a line with its ground."""
    (*ink, alpha), (*ground, _) = (rgba(line[name]) for name in ("stroke", "paper"))
    opacity = alpha * line["opacity"]
    blended = [opacity * over + (1 - opacity) * under for over, under in zip(ink, ground, strict=True)]
    light, dark = sorted((luminance(blended), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def rgba(colour: str) -> list[float]:
    """Of `rgb(1, 2, 3)` or `rgba(1, 2, 3, 0.5)`."""
    return [*map(float, re.findall(r"[\d.]+", colour)), 1.0][:4]


def luminance(colour: list[float]) -> float:
    """WCAG 2's relative luminance of red, green, blue up to 255."""
    parts = (part / 255 for part in colour)
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def pale(visit: Visit) -> list[dict[str, Any]]:
    """Lines of the page's charts, but for grids and borders between ranks, below 3:1, WCAG 2's least for graphics."""
    return [line for line in visit.page.locator(CHARTS).evaluate_all(LINES) if contrast(line) < 3]


CHARTS = "svg.live, svg.chart"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scripts", [True, False])
def test_every_line_of_every_chart_stands_out_from_its_ground(
    browser: Any, report: Path, scheme: str, scripts: bool
) -> None:
    with opened(browser, report, scheme=scheme, scripts=scripts) as visit:
        lines = visit.page.locator(CHARTS).evaluate_all(LINES)
        assert len({line["stroke"] for line in lines}) >= 3
        assert pale(visit) == []
        visit.page.locator(CHARTS).first.evaluate(PLANTED)
        assert len(pale(visit)) == 3
