"""A real headless Chromium, and the pages that it opens: each is written once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accuracy.report.build import write_report
from tests.slow.browser import chromium
from tests.unit.report import tables
from tests.unit.report.synthetic import HOSTILE_SHAPE, write_run
from tests.unit.report.tables import run_of, shape

WIDE = "a_variant_of_a_very_long_name_that_no_margin_holds_in_one_line"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if reason := chromium.missing():
        pytest.skip(reason)
    with chromium.started() as running:
        yield running


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dk of ring is wrong by half; three dtypes, a long name, errors along the sequence."""
    made = tmp_path_factory.mktemp("bug")
    variants = ("single_device", "ring", "zigzag", WIDE)
    dtypes, exponents = ("float32", "bfloat16", "float64"), dict.fromkeys(variants, 0.0)
    wanted = shape(variants=variants, dtypes=dtypes, seeds=(0, 1, 2), exponents=exponents)
    run_of(made, wanted, tables.logic, positions=True)
    return made


@pytest.fixture(scope="session")
def report(folder: Path) -> Path:
    return write_report(folder).path


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("hostile"), HOSTILE_SHAPE)).path
