"""Is a headless Chromium here, and how is it started? For the tests in a browser and the benchmark of the report."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def missing() -> str:
    """Why there is no browser; empty where there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if CHROMIUM.exists() else f"{CHROMIUM} is missing: apt-get install chromium"


@contextmanager
def started() -> Iterator[Any]:
    """playwright's Browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield running
        running.close()
