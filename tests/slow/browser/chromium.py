"""Is a headless Chromium here, and how is it started? For the tests in a browser and the benchmark of the report."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
ROWS = "#row-explorer tbody tr:not(.more)"
DRAWN = "#explorer[data-drawn]"  # every view has drawn the state that it names


def missing() -> str:
    """Why there is no browser; empty where there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if CHROMIUM.exists() else f"{CHROMIUM} is missing: apt-get install chromium"


@contextmanager
def started() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield running
        running.close()


class Visit:
    """An open page with everything it said and asked for; every part unfolded, where that is asked for."""

    def __init__(self, browser: Any, path: Path, unfold: bool = False, scripts: bool = True, **options: Any) -> None:
        size = {"width": options.pop("width", 1440), "height": options.pop("height", 900)}
        self.page = browser.new_page(viewport=size, java_script_enabled=scripts, **options)
        self.said: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(path.as_uri())
        if scripts:
            self.page.wait_for_selector(f"{DRAWN}, #cells tbody tr", state="attached")
        if unfold:
            self.page.locator("details").evaluate_all("parts => parts.forEach((part) => { part.open = true; })")
            self.page.wait_for_selector("#row-explorer [role=status]:not(:empty)")

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *error: object) -> None:
        self.page.close()

    def settled(self) -> None:
        self.page.wait_for_selector(DRAWN)

    def choose(self, **values: str) -> None:
        for name, value in values.items():
            self.page.locator("#bar").get_by_label(name, exact=True).select_option(value)
            self.settled()

    def rows(self, which: str) -> None:
        """Choose which rows the table of all rows shows: case, all."""
        self.page.get_by_role("combobox", name="Rows", exact=True).select_option(which)

    def chosen(self) -> dict[str, str]:
        script = "all => Object.fromEntries(all.map(each => [each.ariaLabel, each.value]))"
        return dict(self.page.locator("#bar select").evaluate_all(script))

    def column(self, name: str) -> list[str]:
        heads = self.page.locator("#row-explorer thead th").all_inner_texts()
        place = next(place for place, text in enumerate(heads) if text.split(" ")[0] == name)
        return list(self.page.locator(ROWS).evaluate_all(f"rows => rows.map(row => row.children[{place}].innerText)"))

    def status(self) -> str:
        return str(self.page.locator("#row-explorer [role=status]").inner_text())

    def is_quiet(self, path: Path) -> bool:
        return not self.said and [url for url in self.requested if not url.startswith("data:")] == [path.as_uri()]
