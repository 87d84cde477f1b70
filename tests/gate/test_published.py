"""Every run of attention alone published under reports/ can be a baseline: its sums fit and the gate reads it."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from accuracy.results.cell import measured
from accuracy.results.run_table import read_baseline

REPORTS = Path(__file__).parents[2] / "reports"
PUBLISHED = sorted(
    path.parent for path in REPORTS.glob("*/*/results.parquet") if "layer" not in pq.read_schema(path).names
)


@pytest.mark.stress(3)
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_the_gate_reads_what_is_published(folder: Path) -> None:
    assert measured(read_baseline(folder))
