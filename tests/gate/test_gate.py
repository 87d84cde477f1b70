import math
import shutil
from pathlib import Path

import pytest

from accuracy.gate.fingerprint import HARD
from accuracy.measurement.provenance import fingerprint
from accuracy.results import table
from tests.gate.conftest import Gate
from tests.gate.made_up import FINGERPRINT, MadeUp, case_id, with_error, without_numbers, write_baseline, write_run

CELLS = (1 + 2 + 2) * 6  # settings x tensors


def ring_dq(factor: float):
    return lambda variant, dtype, size, tensor, seed: (
        factor if (variant, dtype, size, tensor) == ("ring", "bfloat16", 4, "dq") else 1.0
    )


def one_seed(variant: str, dtype: str, size: int, tensor: str, seed: int) -> float:
    return 1.3 if (variant, dtype, size, tensor, seed) == ("ring", "bfloat16", 4, "dq", 3) else 1.0


def all_worse(about, rows):
    return [with_error(row, row["error_rel"] * 1.1, row["single_device_rel"] * 1.1) for row in rows]


ONE = case_id("ring", "bfloat16", 4, 3)


def dead_rank(about, rows):
    return without_numbers(about, table.FAILED, "rank 2 died: signal 9") if about["case_id"] == ONE else rows


def too_large(about, rows):
    return without_numbers(about, table.UNSUPPORTED, "too large") if about["variant"] == "ring" else rows


def not_finite(about, rows):
    if about["case_id"] != ONE:
        return rows
    bad = {"error_rel": math.inf, "error_max": math.inf, "nonfinite": 5}
    return [{**row, "status": table.FAILED, **(bad if row["tensor"] == "dk" else {})} for row in rows]


FRESH = range(100, 108)
PASSED = f"{CELLS} passed, 0 failed, 0 skipped"
FAILED = f"{CELLS - 1} passed, 1 failed, 0 skipped"
REGRESSION = "regression. ring bfloat16 W=4 dq: +"
OUTCOMES = {  # run, exit status, what is said
    "the same numbers": (MadeUp(), 0, f"{CELLS} identical", PASSED),
    "other noise of the same size": (MadeUp(luck=1), 0, PASSED),
    "other noise on fresh seeds": (MadeUp(luck=1, seeds=FRESH), 0, PASSED),
    "an accumulator 10 percent worse": (MadeUp(luck=1, worse=ring_dq(1.1)), 1, REGRESSION, FAILED),
    "10 percent on fresh seeds": (MadeUp(luck=1, seeds=FRESH, worse=ring_dq(1.1)), 1, REGRESSION, FAILED),
    "10 percent by other code": (
        MadeUp(luck=1, worse=ring_dq(1.1), fingerprint=FINGERPRINT | {"code": "0ther", "accuracy": "0.2.0"}), 1, FAILED,
    ),
    "4 percent worse": (MadeUp(worse=ring_dq(1.04)), 0, "1 changed", PASSED),
    "6 percent without any spread": (MadeUp(worse=ring_dq(1.06)), 1, FAILED),
    "a worse kernel, whose ratios stay": (
        MadeUp(luck=1, change=all_worse), 1, "error over the rounding floor +10", f"0 passed, {CELLS} failed",
    ),
    "one bad seed": (MadeUp(worse=one_seed), 1, "1 outlier"),
    "an improvement": (MadeUp(luck=1, worse=ring_dq(0.9)), 0, "1 improved", "accuracy accept"),
    "a lost case": (
        MadeUp(change=lambda about, rows: None if about["case_id"] == ONE else rows), 3,
        "ring bfloat16 W=4 seed 3: planned, and not in the table", f"{CELLS} passed, 1 failed, 0 skipped",
    ),
    "a dead rank": (MadeUp(change=dead_rank), 3, "rank 2 died: signal 9"),
    "measured before and unsupported now": (
        MadeUp(change=too_large), 3, "the baseline has it, and now: too large",
    ),
    "interrupted": (MadeUp(about={"ended": None}), 3),
    "values that are not finite": (
        MadeUp(change=not_finite), 1, "ring bfloat16 W=4 dk: 5 values are not finite", FAILED,
    ),
    "another driver": (
        MadeUp(provenance={"driver": "999"}), 0, "warning, measured in another environment: driver was 580, is 999",
    ),
}  # fmt: skip


@pytest.mark.stress(6)
@pytest.mark.parametrize("name", OUTCOMES)
def test_a_run_has_its_exit_status_and_says_why(gate: Gate, name: str) -> None:
    made, status, *told = OUTCOMES[name]
    answer = gate(made)
    assert answer.status == status, answer.out
    assert answer.last_line.endswith(" skipped")
    for words in told:
        assert words in answer.out


def test_a_variant_that_the_run_did_not_plan_is_missed_unless_it_is_a_part(gate: Gate) -> None:
    run = MadeUp(variants=("single_device", "ring"))
    answer = gate(run)
    assert answer.status == 3
    assert "the baseline has it, the run did not plan it" in answer.out
    assert gate(run, "--part").status == 0


def test_a_run_that_measured_nothing_is_incomplete(gate: Gate) -> None:
    answer = gate(MadeUp(change=lambda about, rows: None, seeds=(0,)), against=None)
    assert answer.status == 3
    assert answer.last_line.startswith("0 passed")


@pytest.mark.stress(1)
@pytest.mark.parametrize(
    ("hard", "told"),
    [
        ({"device": "Other GPU"}, "device was Some GPU, is Other GPU"),
        ({"torch": "2.12.0"}, "torch was 2.11.0, is 2.12.0"),
        ({"cuda": "12.8"}, "cuda was 13.0, is 12.8"),
        ({"flash_attn": None}, "flash_attn was 2.8.3, is not recorded"),
        ({"flash_attn_4": "4.0.0"}, "flash_attn_4 was not recorded, is 4.0.0"),
        ({"triton": "3.7.0"}, "triton was 3.6.0, is 3.7.0"),
        ({"cudnn": 92000}, "cudnn was 91300, is 92000"),
        ({"knobs": {"allow_tf32": True}}, 'knobs was {"allow_tf32": false}, is {"allow_tf32": true}'),
    ],
)
def test_another_fingerprint_is_said_and_judged_by_portable_rules_alone(gate: Gate, hard: dict, told: str) -> None:
    run = MadeUp(luck=1, worse=ring_dq(1.2), fingerprint=FINGERPRINT | hard)
    answer = gate(run)
    assert answer.status == 0  # 1.38 times single device: within the rules, 20% above a baseline that says nothing
    assert f"the baseline is not comparable, the portable rules decide alone: {told}" in answer.out
    assert gate(run, "--require-baseline").status == 4
    assert gate(run.but(worse=ring_dq(1.4))).status == 1


def test_without_a_baseline_the_rules_decide_and_it_is_said(gate: Gate) -> None:
    answer = gate(MadeUp(), against=None)
    assert answer.status == 0
    assert "no baseline was given: the portable rules decide alone" in answer.out
    assert gate(MadeUp(), "--require-baseline", against=None).status == 4
    assert gate(MadeUp(worse=ring_dq(1.5)), against=None).status == 1


def test_a_cell_without_baseline_is_new_and_not_enough_where_one_is_required(gate: Gate) -> None:
    run = MadeUp(variants=("single_device", "ring", "llama3", "striped"))
    answer = gate(run)
    assert answer.status == 0
    assert "12 cells not in the baseline: the portable rules alone decide on them" in answer.out
    assert gate(run, "--require-baseline").status == 4


def test_seeds_too_few_to_see_10_percent_are_said_to_be(gate: Gate) -> None:
    """Eight seeds on either side see 10% up to a spread of 1.4%; here it is 3%, and 0.4% else."""
    noisy = MadeUp(luck=1, spread=0.03, seeds=range(100, 108))
    assert "for a rise of 10% to be caught surely" in gate(noisy).out
    assert "for a rise of 10%" not in gate(noisy.but(spread=0.004)).out


def test_the_gate_knows_every_entry_of_a_run_s_fingerprint() -> None:
    """What tells the code apart is the question itself; all else must fit."""
    assert set(fingerprint("cpu")) - set(HARD) == {"accuracy", "code"}


def test_of_several_devices_the_comparable_one_is_taken(gate: Gate, baseline: Path) -> None:
    write_baseline(baseline.parent / "another", MadeUp(seeds=(0,), fingerprint=FINGERPRINT | {"device": "Another"}))
    try:
        answer = gate(MadeUp(), against=baseline.parent)
    finally:
        shutil.rmtree(baseline.parent / "another")
    assert answer.status == 0
    assert f"against: {baseline} (commit 0123456789ab, same fingerprint)" in answer.out


def test_two_noisy_seeds_are_undecided_and_a_second_look_with_fresh_ones_decides(gate: Gate, tmp_path: Path) -> None:
    """17% up at 2% of spread: two seeds give t of about 9 and 8 degrees of freedom, between the two levels."""
    first = MadeUp(luck=1, seeds=(100, 101), worse=ring_dq(1.17), spread=0.02)
    baseline = write_baseline(tmp_path / "noisy", MadeUp(spread=0.02))
    answer = gate(first, against=baseline)
    assert answer.status == 3, answer.out
    assert "1 undecided" in answer.out
    assert "the same run with seed=[102,103], then --second" in answer.out
    repeated = write_run(tmp_path / "repeated", first)
    assert gate(first, "--second", str(repeated), against=baseline).status == 2
    many = write_run(tmp_path / "many", first.but(seeds=range(200, 216), luck=5))
    answer = gate(first, "--second", str(many), against=baseline)
    assert answer.status == 1, answer.out
    assert "after two looks" in answer.out
    fine = write_run(tmp_path / "fine", first.but(seeds=range(300, 316), luck=5, worse=ring_dq(1.0)))
    assert gate(first, "--second", str(fine), against=baseline).status == 0


def test_an_excess_that_the_baseline_has_is_accepted_and_one_that_grew_is_not(gate: Gate, tmp_path: Path) -> None:
    accepted = write_baseline(tmp_path / "accepted", MadeUp(worse=ring_dq(1.6)))
    answer = gate(MadeUp(luck=1, worse=ring_dq(1.6)), against=accepted)
    assert answer.status == 0
    assert "1 accepted" in answer.out
    assert gate(MadeUp(luck=1, worse=ring_dq(1.8)), against=accepted).status == 1
