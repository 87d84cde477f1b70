"""A real headless Chromium, one for each file of tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if reason := chromium.missing():
        pytest.skip(reason)
    with chromium.started() as running:
        yield running
