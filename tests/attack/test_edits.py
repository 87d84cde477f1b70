"""No row, column, seed or file that is lost turns a failing run into one that passes."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accuracy.cli import check
from accuracy.core.errors import ConfigError
from accuracy.results import storage, table
from accuracy.results.run_table import read_baseline
from tests.attack.edits import EDITS, FAILING, HEALTHY, rows_of, write_rows
from tests.gate.made_up import write_baseline, write_run


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_baseline(tmp_path_factory.mktemp("baseline") / "it", HEALTHY)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("failing") / "run", FAILING)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("healthy") / "run", HEALTHY.but(luck=1))


UNREADABLE = {
    "record: gone", "record: half of it", "record: no object", "record: an earlier version's", "table: half of it",
}  # fmt: skip


def status(run: Path, baseline: Path) -> int:
    return int(check.main([str(run), "--baseline", str(baseline)]))


def test_there_are_60_ways_and_the_runs_are_what_they_take_them_for(
    failing: Path, healthy: Path, baseline: Path
) -> None:
    assert len(EDITS) >= 60
    assert (status(failing, baseline), status(healthy, baseline)) == (1, 0)


@pytest.mark.stress(8)
@pytest.mark.parametrize("name", EDITS)
def test_a_run_that_lost_something_never_passes_and_a_healthy_one_is_incomplete(
    name: str, failing: Path, healthy: Path, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = {failing: (1, 2, 3), healthy: (2,) if name in UNREADABLE else (3,)}
    for run, statuses in allowed.items():
        copy = Path(shutil.copytree(run, tmp_path / run.parent.name))
        EDITS[name](copy)
        ended = status(copy, baseline)
        captured = capsys.readouterr()
        assert ended in statuses, captured
        assert "Traceback" not in captured.err
        assert (captured.out + captured.err).strip()


EXAMPLES = settings(
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_no_single_deletion_lets_a_failing_run_pass(
    failing: Path, baseline: Path, tmp_path: Path, stress: bool
) -> None:
    """Any row of the table, any of its columns, any file of the folder."""
    whole = rows_of(failing)
    files = [path.relative_to(failing) for path in failing.rglob("*") if path.is_file()]
    deletions = st.one_of(
        st.tuples(st.just("row"), st.integers(0, len(whole) - 1)),
        st.tuples(st.just("column"), st.sampled_from(table.RESULTS_SCHEMA.names)),
        st.tuples(st.just("file"), st.sampled_from(files)),
    )

    @settings(EXAMPLES, max_examples=600 if stress else 8)
    @given(deletions)
    def never_passes(deletion: tuple[str, object]) -> None:
        kind, what = deletion
        run = Path(shutil.copytree(failing, tmp_path / "run", dirs_exist_ok=True))
        if kind == "file":
            (run / str(what)).unlink()
        else:
            write_rows(run, whole.drop(**{"index" if kind == "row" else "columns": what}))
        assert status(run, baseline) != 0

    never_passes()


def test_a_plan_survives_publishing_and_a_lean_table_that_lost_a_row_is_refused(healthy: Path, tmp_path: Path) -> None:
    rows = table.read_results(healthy)
    for name, kept in (("whole", rows), ("less", rows.drop(index=7))):
        (tmp_path / name).mkdir()
        storage.write_table(storage.lean_results(kept), tmp_path / name / "results.parquet")
        shutil.copy(healthy / "run.json", tmp_path / name)
        storage.write_sums(tmp_path / name)
    assert read_baseline(tmp_path / "whole").faults == ()
    with pytest.raises(ConfigError, match="its rows are absent"):
        read_baseline(tmp_path / "less")
