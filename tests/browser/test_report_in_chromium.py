import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accuracy.cli import check
from accuracy.report.build import write_report
from tests.browser.chromium import Visit
from tests.gate import made_up
from tests.gate.made_up import MadeUp, write_baseline
from tests.report.synthetic import HOSTILE, HOSTILE_SHAPE, Shape, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(dtypes=("bfloat16", "float64"), world_sizes=(1, 2, 4), tensors=("out", "dq"))
    return write_report(write_run(tmp_path_factory.mktemp("run"), shape)).path


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def worse(variant: str, dtype: str, size: int, tensor: str, seed: int) -> float:
        return 1.3 if (variant, tensor) == ("llama3", "dk") else 1.0

    folder = tmp_path_factory.mktemp("compare")
    baseline = write_baseline(folder / "baseline", MadeUp())
    run = made_up.write_run(folder / "run", MadeUp(luck=1, worse=worse))
    assert check.main([str(run), "--baseline", str(baseline), "--out", str(folder / "out")]) == 1
    return folder / "out" / "compare.html"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("hostile"), HOSTILE_SHAPE)).path


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Visit]:
    with Visit(browser, report) as opened:
        yield opened


INKS = {"report": ("svg.live text", "fill"), "compare": ("#cells .tag.failed", "color")}


@pytest.mark.parametrize("name", INKS)
def test_a_page_is_quiet_asks_for_nothing_never_scrolls_sideways_and_is_readable_in_light_and_dark(
    browser: Any, request: pytest.FixtureRequest, name: str
) -> None:
    path, (part, style) = request.getfixturevalue(name), INKS[name]
    found = []
    for scheme in ("light", "dark"):
        with Visit(browser, path, color_scheme=scheme) as opened:
            for width in (1440, 700, 390):
                opened.page.set_viewport_size({"width": width, "height": 900})
                assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
            assert opened.said == []
            assert not opened.asked(path)
            paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
            of_part = f"getComputedStyle(document.querySelector('{part}'))"
            found.append((paper, *(opened.page.evaluate(f"{of_part}.{each}") for each in (style, "backgroundColor"))))
    (light, light_ink, _), (dark, dark_ink, _) = found
    assert light != dark
    assert light_ink != dark_ink
    assert all(ink not in (paper, ground) for paper, ink, ground in found)


def test_the_test_of_quiet_hears_a_forbidden_request(browser: Any, report: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    fault = '<script>fetch("https://example.invalid/")</script><img src="https://example.invalid/x.png">'
    broken.write_text(report.read_text(encoding="utf-8").replace("</main>", f"{fault}</main>"), encoding="utf-8")
    with Visit(browser, broken) as opened:
        assert any("Content Security Policy" in text for text in opened.said)


def test_pages_turn_and_the_keyboard_sorts_and_opens_a_row(visit: Visit) -> None:
    visit.page.get_by_role("combobox", name="Rows", exact=True).select_option("all")
    first = visit.column("error_rel")
    visit.page.get_by_role("button", name="Next").click()
    assert "page 2" in visit.status()
    assert visit.column("error_rel") != first
    visit.page.locator("#row-explorer th button", has_text="x_single_device").focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.locator("#row-explorer th[aria-sort=descending]").inner_text().startswith("x_single_device")
    visit.page.locator("#row-explorer .row-button").first.focus()
    visit.page.keyboard.press("Enter")
    command = visit.page.locator("tr.more code").inner_text()
    assert command.startswith("accuracy variant=striped ")
    assert "problem.seqlen=1024" in command
    visit.page.keyboard.press("Space")
    assert visit.page.locator("tr.more").count() == 0


def test_the_downloads_hold_what_is_shown(visit: Visit) -> None:
    def rows(button: str) -> list[str]:
        with visit.page.expect_download() as caught:
            visit.page.get_by_role("button", name=button).click()
        return Path(caught.value.path()).read_text().splitlines()

    for scope in ("case", "all"):
        visit.page.get_by_role("combobox", name="Rows", exact=True).select_option(scope)
        shown = int(visit.status().split(" ")[0].replace(",", ""))
        head, *lines = rows("Download CSV")
        assert head.startswith("case_id,experiment,variant")
        assert len(lines) == len(json.loads("".join(rows("Download JSON")))) == shown
    lines = rows("Download what is shown")
    tensor = lines[0].split(",").index("tensor")
    assert {line.split(",")[tensor] for line in lines[1:]} == {visit.chosen()["tensor"]}


def test_without_javascript_nothing_is_hidden_but_the_single_rows(browser: Any, report: Path) -> None:
    with Visit(browser, report, java_script_enabled=False) as opened:
        for part in ("h1", ".key-picture svg", ".matrix table", "#rows table", "#method dl"):
            assert opened.page.locator(part).is_visible()
        assert not opened.page.locator("#bar").is_visible()


def test_a_hostile_string_does_nothing(browser: Any, hostile: Path, tmp_path: Path) -> None:
    with Visit(browser, hostile) as opened:
        for button in opened.page.locator("#row-explorer .row-button").all()[:3]:
            button.click()
        opened.page.get_by_label("Search").fill("src=x")
        assert opened.page.evaluate("window.hacked") is None
        assert opened.page.locator("img, iframe").count() == 0
        assert opened.said == []
        assert not opened.asked(hostile)
    careless = tmp_path / "careless.html"  # the test can fail
    careless.write_text(f'<!doctype html><p title="">{HOSTILE}</p>')
    page = browser.new_page()
    page.goto(careless.as_uri())
    assert page.evaluate("window.hacked") == 1
    page.close()
