"""No row, column, seed or file that is lost turns a failing run into one that passes; nor does a loss that was measured
pass where the kernel got worse on both sides, or where a norm hides it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accuracy.cli import check
from tests.unit.attack.edits import EDITS, FAILING, HEALTHY
from tests.unit.conftest import Gate
from tests.unit.gate.made_up import MadeUp, Row, with_error, write_baseline, write_run

Change = Callable[[Row], Row]
Rows = Callable[[Row, list[Row]], list[Row]]
pytestmark = pytest.mark.xdist_group("losses")  # the runs are written once
READ = {
    "error_rel", "error_max", "error_rms", "error_bias", "error_gain", "single_device_rel", "single_device_max",
    "floor_rel", "nonfinite", "status", "seed", "rank", "tensor", "code", "device",
}  # fmt: skip


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_baseline(tmp_path_factory.mktemp("baseline") / "it", HEALTHY)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, baseline: Path) -> Path:
    """`failing` and `healthy`, as they are called."""
    folder = tmp_path_factory.mktemp("runs")
    for name, made, status in (("failing", FAILING, 1), ("healthy", HEALTHY.but(luck=1), 0)):
        assert status_of(write_run(folder / name, made), baseline) == status
    return folder


def status_of(run: Path, baseline: Path) -> int:
    return int(check.main([str(run), "--baseline", str(baseline)]))


@pytest.mark.stress(3)
@pytest.mark.parametrize("name", EDITS)
def test_a_run_that_lost_something_never_passes_and_a_healthy_one_is_incomplete(
    name: str, runs: Path, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_healthy = (2,) if name in ("record: gone", "table: half of it", "marked: without error") else (3,)
    if name.startswith("column") and name.removeprefix("column empty: ") not in READ:
        of_healthy = (0, 2, 3)  # nothing may read it
    elif name.startswith("column"):
        of_healthy = (2, 3)
    for run, statuses in (("failing", (1, 2, 3)), ("healthy", of_healthy)):
        copy = Path(shutil.copytree(runs / run, tmp_path / run))
        EDITS[name](copy)
        assert status_of(copy, baseline) in statuses
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert (captured.out + captured.err).strip()


def everywhere(change: Change) -> Rows:
    return lambda about, rows: [change(row) for row in rows]


def in_cell(change: Change) -> Rows:
    """Of dq of ring at 4 ranks."""
    cell = {"variant": "ring", "world_size": 4, "tensor": "dq"}
    return everywhere(lambda row: change(row) if cell.items() <= row.items() else row)


def times(factor: float, rank: int | None = None, alike: bool = False) -> Change:
    """So many times the error, of one rank or of all; alike: the kernel itself got worse, single device's error too."""

    def worse(row: Row) -> Row:
        if rank not in (None, row["rank"]):
            return row
        names = ("error_max", "error_rms", "error_bias", "single_device_max") if alike else ()
        grown = {name: row[name] * factor for name in names}
        single_device = row["single_device_rel"] * (factor if alike else 1)
        return {**with_error(row, row["error_rel"] * factor, single_device), **grown}

    return worse


def having(**values: Callable[[Row], Any]) -> Change:
    return lambda row: {**row, **{name: value(row) for name, value in values.items()}}


LOSSES = {  # what changed, and how it is called
    "a kernel worse alike": (in_cell(times(1.3, alike=True)), "error over the rounding floor +"),
    "the largest error four times": (in_cell(having(error_max=lambda row: row["error_max"] * 4)), "largest error +"),
    "a pure bias of the same size": (
        in_cell(having(error_bias=lambda row: row["error_rms"])), "signed mean of the error +0.9",
    ),
    "a factor of the same size": (
        in_cell(having(error_gain=lambda row: row["error_rel"])), "factor on the reference +0.9",
    ),
    "one rank 20 times worse": (in_cell(times(20, rank=2)), "error on the worst rank 20.0\u00d7"),
    "one rank 30% worse": (in_cell(times(1.3, rank=3)), "error on the worst rank +"),
}  # fmt: skip


@pytest.mark.stress(3)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seeds", [range(8), range(100, 108)], ids=["same seeds", "fresh seeds"])
def test_a_loss_that_was_measured_fails_and_is_named(name: str, seeds: range, gate: Gate) -> None:
    change, told = LOSSES[name]
    answer = gate(HEALTHY.but(luck=1, seeds=seeds, change=change))
    assert answer.status == 1
    first = answer.out.splitlines()[0]
    assert told in first
    assert "dq" in first


def test_easier_inputs_under_the_same_name_are_no_improvement(gate: Gate, tmp_path: Path) -> None:
    """Inputs of a tenth of the size have half the error; a reference that differs by its own roundings is the same."""

    def sized(size: float, factor: float) -> Rows:
        return everywhere(lambda row: {**times(factor, alike=True)(row), "reference_rms": size})

    baseline = write_baseline(tmp_path / "baseline", HEALTHY.but(change=sized(1.0, 1.0)))
    assert gate(HEALTHY.but(change=sized(1.0 + 1e-9, 1.0)), against=baseline).status == 0
    answer = gate(HEALTHY.but(change=sized(0.1, 0.5)), against=baseline)
    assert answer.status == 3
    assert "the inputs of seed 0 are not the baseline's" in answer.out


def tied(condition: float) -> Rows:
    """dq has 100 times the floor of an error, on inputs whose sums cancel to the condition'th part."""
    numbers = {"inputs": "tied", "condition_sum": condition, "condition_rounding": 2.0, "condition_softmax": 1.0}
    return everywhere(lambda row: {**times(100.0 if row["tensor"] == "dq" else 1.0, alike=True)(row), **numbers})


def last_bit(row: Row) -> Row:
    return {**row, "error_max": row["error_max"] * (1 + 2**-52 * (row["rank"] == 1))}


LEFT_OUT, SEVEN = HEALTHY.but(seeds=(0, 1, 2, 4, 5, 6, 7, 8)), HEALTHY.but(seeds=range(7))  # the baseline has 0 to 7
OTHER_BIAS = in_cell(having(error_bias=lambda row: -row["error_bias"]))
RING = MadeUp(variants=("ring",), dtypes=("bfloat16",), sizes=(2,))
BY_CONDITION = "18 cells judged by condition number times unit roundoff"
BY_FLOOR = "no variant=single_device in the matrix: judged by the rounding floor as well"
TOLD = {  # run, words of the command, exit status, and what is said
    "equal errors are identical": (HEALTHY, "", 0, "18 identical"),
    "all ratios stay, and one bit of one rank's error moves": (HEALTHY.but(change=in_cell(last_bit)), "", 0, "17 iden"),
    "the bias alone is another": (HEALTHY.but(change=OTHER_BIAS), "", 0, "17 identical"),
    "a seed of the baseline is left out": (LEFT_OUT, "", 3, "leaves out seed 3 of the baseline"),
    "it is left out on purpose": (LEFT_OUT, "--part", 0, "passed"),
    "seeds are too few": (SEVEN, "", 3, "has 7 seeds, and 8 are needed"),
    "they are few on purpose": (SEVEN, "--part", 0, "passed"),
}
ALONE = {  # without a baseline
    "sums cancel as much as the error is large": (HEALTHY.but(change=tied(200.0)), "", 0, BY_CONDITION),
    "they do not": (HEALTHY.but(change=tied(3.0)), "", 1, BY_CONDITION),
    "a matrix without single device is judged by the floor": (RING, "", 0, BY_FLOOR),
    "it is beyond it": (RING.but(change=everywhere(times(100.0, alike=True))), "", 1, "times the bound of roundings"),
}


@pytest.mark.parametrize("name", [*TOLD, *ALONE])
def test_what_a_run_is_judged_by_and_lacks_is_said(name: str, gate: Gate, baseline: Path) -> None:
    made, words, status, said = TOLD.get(name) or ALONE[name]
    answer = gate(made, *words.split(), against=baseline if name in TOLD else None)
    assert (answer.status, said in answer.out) == (status, True), answer.out
    assert said != BY_FLOOR or said in answer.out.splitlines()[0]
