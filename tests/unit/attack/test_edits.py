"""No row, column, seed or file that is lost turns a failing run into one that passes."""

import shutil
from pathlib import Path

import pytest

from accuracy.cli import check
from tests.unit.attack.edits import EDITS, FAILING, HEALTHY
from tests.unit.gate.made_up import write_baseline, write_run

pytestmark = pytest.mark.xdist_group("edits")
READ = {
    "error_rel", "error_max", "error_rms", "error_bias", "error_gain", "single_device_rel", "single_device_max",
    "floor_rel", "nonfinite", "status", "seed", "rank", "tensor", "code", "device",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`baseline`, `failing` and `healthy`."""
    folder = tmp_path_factory.mktemp("runs")
    write_baseline(folder / "baseline", HEALTHY)
    write_run(folder / "failing", FAILING)
    write_run(folder / "healthy", HEALTHY.but(luck=1))
    return folder


def status(run: Path, runs: Path) -> int:
    return int(check.main([str(run), "--baseline", str(runs / "baseline")]))


def test_there_are_100_ways_and_the_runs_are_what_they_take_them_for(runs: Path) -> None:
    assert len(EDITS) >= 100
    assert (status(runs / "failing", runs), status(runs / "healthy", runs)) == (1, 0)


@pytest.mark.stress(5)
@pytest.mark.parametrize("name", EDITS)
def test_a_run_that_lost_something_never_passes_and_a_healthy_one_is_incomplete(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_healthy = (2,) if name in ("record: gone", "table: half of it") else (3,)
    if name.startswith("column") and name.removeprefix("column empty: ") not in READ:
        of_healthy = (0, 2, 3)  # nothing may read it
    for run, statuses in (("failing", (1, 2, 3)), ("healthy", of_healthy)):
        copy = Path(shutil.copytree(runs / run, tmp_path / run))
        EDITS[name](copy)
        ended = status(copy, runs)
        captured = capsys.readouterr()
        assert ended in statuses, captured
        assert "Traceback" not in captured.err
        assert (captured.out + captured.err).strip()
