"""No loss that a run measured passes: not where the kernel got worse on both sides, not where a norm hides it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from accuracy.cli import check
from tests.attack.edits import HEALTHY
from tests.gate.made_up import MadeUp, Row, with_error, write_baseline, write_run

Change = Callable[[Row], Row]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_baseline(tmp_path_factory.mktemp("baseline") / "it", HEALTHY)


def in_cell(change: Change, size: int = 4, tensor: str = "dq") -> Callable[[Row, list[Row]], list[Row]]:
    """Of one cell of ring, the rows changed."""

    def changed(about: Row, rows: list[Row]) -> list[Row]:
        mine = about["variant"] == "ring" and about["world_size"] == size
        return [change(row) if mine and row["tensor"] == tensor else row for row in rows]

    return changed


def everywhere(change: Change) -> Callable[[Row, list[Row]], list[Row]]:
    return lambda about, rows: [change(row) for row in rows]


def alike(factor: float) -> Change:
    """The kernel itself got worse, single device's error with it."""

    def worse(row: Row) -> Row:
        grown = {name: row[name] * factor for name in ("error_max", "error_rms", "error_bias", "single_device_max")}
        return {**with_error(row, row["error_rel"] * factor, row["single_device_rel"] * factor), **grown}

    return worse


def of_rank(rank: int, factor: float) -> Change:
    return lambda row: (
        with_error(row, row["error_rel"] * factor, row["single_device_rel"]) if row["rank"] == rank else row
    )


LOSSES = {  # what changed, and how it is called
    "a kernel worse alike": (in_cell(alike(1.3)), "error over the rounding floor +"),
    "every tensor ten times worse alike": (everywhere(alike(10.0)), "error over the rounding floor +"),
    "the largest error four times": (
        in_cell(lambda row: {**row, "error_max": row["error_max"] * 4}), "largest error +",
    ),
    "a pure bias of the same size": (
        in_cell(lambda row: {**row, "error_bias": row["error_rms"]}), "signed mean of the error +0.9",
    ),
    "a bias of a fifth of it": (
        in_cell(lambda row: {**row, "error_bias": -0.2 * row["error_rms"]}), "signed mean of the error +0.",
    ),
    "a factor of the same size": (
        in_cell(lambda row: {**row, "error_gain": row["error_rel"]}), "factor on the reference +0.9",
    ),
    "one rank 20 times worse": (in_cell(of_rank(2, 20)), "error on the worst rank +"),
    "one rank 30% worse": (in_cell(of_rank(3, 1.3)), "error on the worst rank +"),
    "10% in one cell": (
        in_cell(lambda row: with_error(row, row["error_rel"] * 1.1, row["single_device_rel"])), "W=4 dq: +",
    ),
}  # fmt: skip


@pytest.mark.stress(6)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seeds", [range(8), range(100, 108)], ids=["same seeds", "fresh seeds"])
def test_a_loss_that_was_measured_fails_and_is_named(
    name: str, seeds: range, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, told = LOSSES[name]
    run = write_run(tmp_path / "run", HEALTHY.but(luck=1, seeds=seeds, change=change))
    assert check.main([str(run), "--baseline", str(baseline)]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert told in first
    assert "dq" in first or "every" in name


def test_easier_inputs_under_the_same_name_are_no_improvement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inputs of a tenth of the size have half the error; a reference that differs by its own roundings is the same."""

    def sized(size: float, factor: float) -> Change:
        return lambda row: {**alike(factor)(row), "reference_rms": size}

    baseline = write_baseline(tmp_path / "baseline", HEALTHY.but(change=everywhere(sized(1.0, 1.0))))
    for name, size, factor, status in (("same", 1.0 + 1e-9, 1.0, 0), ("easier", 0.1, 0.5, 3)):
        run = write_run(tmp_path / name, HEALTHY.but(change=everywhere(sized(size, factor))))
        assert check.main([str(run), "--baseline", str(baseline)]) == status
    assert "the inputs of seed 0 are not the baseline's" in capsys.readouterr().out


def test_only_equal_errors_are_identical(baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All ratios stay where one bit of one rank's error moves, or the bias alone."""
    last_bit = in_cell(lambda row: {**row, "error_max": row["error_max"] * (1 + 2**-52)} if row["rank"] == 1 else row)
    bias = in_cell(lambda row: {**row, "error_bias": -row["error_bias"]})
    for place, (change, said) in enumerate(
        ((last_bit, "17 identical"), (bias, "17 identical"), (None, "18 identical"))
    ):
        made = HEALTHY if change is None else HEALTHY.but(change=change)
        assert check.main([str(write_run(tmp_path / str(place), made)), "--baseline", str(baseline)]) == 0
        assert said in capsys.readouterr().out


SEEDS = {  # seeds of the run, of a baseline that has 0 to 7; exit status; what is said
    "the baseline's": (range(8), 0, ""),
    "fresh ones": (range(50, 58), 0, ""),
    "one left out": ((0, 1, 2, 4, 5, 6, 7, 8), 3, "the run leaves out seed 3 of the baseline"),
    "the first left out": (range(1, 9), 3, "the run leaves out seed 0 of the baseline"),
    "the last left out": (range(7), 3, "the run has 7 seeds, and 8 are needed"),
}


@pytest.mark.stress(2)
@pytest.mark.parametrize("name", SEEDS)
def test_seeds_of_the_baseline_are_not_left_out_unless_it_is_said(
    name: str, baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds, status, told = SEEDS[name]
    run = write_run(tmp_path / "run", HEALTHY.but(seeds=tuple(seeds)))
    assert check.main([str(run), "--baseline", str(baseline)]) == status
    assert told in capsys.readouterr().out
    assert check.main([str(run), "--baseline", str(baseline), "--part"]) == 0


def test_a_matrix_without_single_device_says_so_first_and_is_judged_by_the_floor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = MadeUp(variants=("ring",), dtypes=("bfloat16",), sizes=(2,))
    assert check.main([str(write_run(tmp_path / "fine", alone))]) == 0
    assert "no single device in the matrix: judged by the rounding floor" in capsys.readouterr().out.splitlines()[0]
    worse = write_run(tmp_path / "worse", alone.but(change=everywhere(alike(100.0))))
    assert check.main([str(worse)]) == 1
    assert "times the bound of roundings" in capsys.readouterr().out


def test_where_condition_numbers_are_recorded_they_are_the_limit_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """dq on tied inputs: 100 times the floor is healthy where the sums cancel as much, and not where they do not."""

    def tied(condition: float) -> Callable[[Row, list[Row]], list[Row]]:
        numbers = {"inputs": "tied", "condition_sum": condition, "condition_rounding": 2.0, "condition_softmax": 1.0}
        return lambda about, rows: [{**alike(100.0 if row["tensor"] == "dq" else 1.0)(row), **numbers} for row in rows]

    for name, condition, status in (("cancel", 200.0, 0), ("do not", 3.0, 1)):
        run = write_run(tmp_path / name, HEALTHY.but(change=tied(condition)))
        assert check.main([str(run)]) == status
        assert "18 cells judged by condition number times unit roundoff" in capsys.readouterr().out
