"""Run folders that several tests read; each is written once."""

from pathlib import Path

import pytest

from accuracy.report.build import ReportSummary, write_report
from tests.report.synthetic import HOSTILE, Shape, write_run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with known growth, one unsupported and one failed case."""
    shape = Shape(
        dtypes=("bfloat16", "float64"),
        tensors=("out", "lse", "dq"),
        reasons=("the kernel lacks float64", "CUDA out of memory"),
    )
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
    shape = Shape(
        variants=("single_device", HOSTILE),
        dtypes=("bfloat16",),
        world_sizes=(1, 2),
        reasons=(HOSTILE, HOSTILE),
        exponents={"single_device": 0.0, HOSTILE: 0.5},
        record={
            "command": HOSTILE,
            "experiment": HOSTILE,
            "config": {HOSTILE: HOSTILE},
            "provenance": {HOSTILE: HOSTILE, "device": HOSTILE, "torch": HOSTILE, "git_commit": HOSTILE},
            "started": HOSTILE,
        },
    )
    folder = write_run(tmp_path_factory.mktemp("hostile"), shape)
    return write_report(folder).path.read_text(encoding="utf-8")
