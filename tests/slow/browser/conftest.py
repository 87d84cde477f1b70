"""A real headless Chromium, and the pages that it opens: each is written once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
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
def drifted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("drift")
    run_of(made, shape(world_sizes=(4,)), tables.drifted)
    return write_report(made).path


@pytest.fixture(scope="session")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dk of ring, wrong by half from 2 ranks on: one block is missing, and one is counted twice, as is proven."""
    made = tmp_path_factory.mktemp("proven")
    run = run_of(made, shape(variants=("single_device", "ring"), dtypes=("float32", "float64")), tables.logic)
    four = run.results[(run.results["variant"] == "ring") & (run.results["world_size"] == 4)]
    case = four.loc[four["dtype"] == "float64", "case_id"].iloc[0]
    cause = {
        "case_id": case, "tensor": "dk", "family": "blocks", "hypothesis": "blocks (own)", "parameter": "0:3=0 2:1=2",
        "cause": "dk misses a block", "freedom": 2, "residual": 1e-16, "expected": 1e-16, "from_best": 0.0, "tried": 9,
    }  # fmt: skip
    rival = {**cause, "hypothesis": "another", "parameter": "", "residual": 1e-8, "from_best": 1e-8}
    pd.DataFrame([cause, rival]).to_parquet(made / "hypotheses.parquet")
    return write_report(made).path


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("hostile"), HOSTILE_SHAPE)).path
