"""Run folders that several tests read; each is written once."""

from pathlib import Path

import pytest

from accuracy.report.build import ReportSummary, write_report
from tests.report.synthetic import HOSTILE_SHAPE, Shape, write_run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with known growth, one unsupported and one failed case."""
    reasons = ("the kernel lacks float64", "CUDA out of memory")
    shape = Shape(dtypes=("bfloat16", "float64"), seeds=(0, 1), tensors=("out", "lse", "dq"), reasons=reasons)
    return write_run(tmp_path_factory.mktemp("run"), shape)


@pytest.fixture(scope="session")
def summary(folder: Path) -> ReportSummary:
    """Its report, written."""
    return write_report(folder)


@pytest.fixture(scope="session")
def page(summary: ReportSummary) -> str:
    """Its report, read."""
    return summary.path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report where every text that a stranger can choose tries to run a script."""
    folder = write_run(tmp_path_factory.mktemp("hostile"), HOSTILE_SHAPE)
    return write_report(folder).path.read_text(encoding="utf-8")
