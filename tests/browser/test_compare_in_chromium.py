"""The gate's page in a real headless Chromium: quiet, without a script, readable at any width, light and dark."""

from pathlib import Path
from typing import Any

import pytest

from accuracy.cli import check
from tests.gate.made_up import MadeUp, write_baseline, write_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def worse(variant: str, dtype: str, size: int, tensor: str, seed: int) -> float:
        return 1.3 if (variant, tensor) == ("llama3", "dk") else 1.0

    folder = tmp_path_factory.mktemp("compare")
    baseline = write_baseline(folder / "baseline", MadeUp())
    run = write_run(folder / "run", MadeUp(luck=1, worse=worse))
    assert check.main([str(run), "--baseline", str(baseline), "--out", str(folder / "out")]) == 1
    return folder / "out" / "compare.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 700, 400])
def test_it_is_quiet_asks_for_nothing_and_never_scrolls_sideways(
    browser: Any, compare: Path, scheme: str, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(compare.as_uri())
    assert said == []
    assert [url for url in requested if not url.startswith("data:")] == [compare.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#cells tbody tr").first.locator(".tag").inner_text() == "regression"
    page.close()


def test_light_and_dark_differ_and_the_worst_label_is_readable_in_both(browser: Any, compare: Path) -> None:
    found = []
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(compare.as_uri())
        style = "getComputedStyle(document.querySelector('#cells .tag.failed'))"
        found.append((page.evaluate(f"{style}.color"), page.evaluate(f"{style}.backgroundColor")))
        page.close()
    assert found[0] != found[1]
    assert all(ink != ground for ink, ground in found)
