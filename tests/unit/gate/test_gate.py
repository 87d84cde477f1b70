import shutil
from pathlib import Path

import pytest

from accuracy.gate.fingerprint import HARD, differences, hard
from accuracy.measurement.provenance import fingerprint
from accuracy.results import table
from tests.unit.conftest import Gate
from tests.unit.gate.made_up import FINGERPRINT, MadeUp, case_id, not_finite, write_baseline, write_run

CELLS = (1 + 2 + 2) * 6  # settings x tensors
ONE = case_id("ring", "bfloat16", 4, 3)


def ring_dq(factor: float, only_seed: int | None = None):
    return lambda variant, dtype, size, tensor, seed: (
        factor if (variant, size, tensor) == ("ring", 4, "dq") and only_seed in (None, seed) else 1.0
    )


def dead_rank(about, rows):
    dead = {**about, "status": table.FAILED, "reason": "rank 2 died: signal 9"}
    return [dead] if about["case_id"] == ONE else rows


def too_large(about, rows):
    return [{**about, "status": table.UNSUPPORTED, "reason": "too large"}] if about["variant"] == "ring" else rows


def one_not_finite(about, rows):
    return [not_finite(row) if (row["case_id"], row["tensor"]) == (ONE, "dk") else row for row in rows]


FRESH = range(100, 108)
PASSED = f"{CELLS} passed, 0 failed, 0 skipped"
FAILED = f"{CELLS - 1} passed, 1 failed, 0 skipped"
PART = MadeUp(variants=("single_device", "ring"))
OTHER = MadeUp(luck=1, worse=ring_dq(1.2), fingerprint=FINGERPRINT | {"torch": "2.12.0"})
NEW = MadeUp(variants=("single_device", "ring", "llama3", "striped"))
NONE = MadeUp(change=lambda about, rows: None, seeds=(0,))
NOISY = MadeUp(luck=1, spread=0.018, seeds=FRESH)  # eight seeds on either side see 10% up to a spread of 1.4%
OUTCOMES = {  # run, words of the command, exit status, what is said; what a run loses is in tests/unit/attack
    "other noise on fresh seeds": (MadeUp(luck=1, seeds=FRESH), "", 0, PASSED),
    "10 percent by other code": (
        MadeUp(luck=1, worse=ring_dq(1.1), fingerprint=FINGERPRINT | {"code": "0ther", "accuracy": "0.2.0"}), "", 1,
        "regression. ring bfloat16 W=4 dq: +", FAILED,
    ),
    "4 percent worse": (MadeUp(worse=ring_dq(1.04)), "", 0, "1 changed", PASSED),
    "6 percent without any spread": (MadeUp(worse=ring_dq(1.06)), "", 1, FAILED),
    "one bad seed": (MadeUp(worse=ring_dq(1.3, only_seed=3)), "", 1, "1 outlier"),
    "an improvement": (MadeUp(luck=1, worse=ring_dq(0.9)), "", 0, "1 improved", "accuracy accept"),
    "a dead rank": (MadeUp(change=dead_rank), "", 3, "rank 2 died: signal 9"),
    "measured before and unsupported now": (MadeUp(change=too_large), "", 3, "and now: too large"),
    "values that are not finite": (MadeUp(change=one_not_finite), "", 1, "W=4 dk: 5 values are not", FAILED),
    "another driver": (MadeUp(provenance={"driver": "999"}), "", 0, "driver was 580, is 999"),
    "a part that is no part": (PART, "", 3, "the run did not plan it"),
    "a part": (PART, "--part", 0, f"{CELLS * 3 // 5} passed"),
    "another torch, within the portable rules": (OTHER, "", 0, "not comparable", "torch was 2.11.0, is 2.12.0"),
    "another torch where a baseline is required": (OTHER, "--require-baseline", 4),
    "another torch and 1.6 times single device": (OTHER.but(worse=ring_dq(1.4)), "", 1),
    "cells without a baseline": (NEW, "", 0, "12 cells not in the"),
    "cells without a required baseline": (NEW, "--require-baseline", 4),
    "too few seeds to see 10 percent": (NOISY, "", 0, "for a rise of 10% to be caught surely"),
}  # fmt: skip
ALONE = {  # without a baseline
    "the rules decide": (MadeUp(), "", 0, "no baseline was given"),
    "a baseline is required": (MadeUp(), "--require-baseline", 4),
    "1.7 times single device": (MadeUp(worse=ring_dq(1.5)), "", 1),
    "nothing was measured": (NONE, "", 3, "\n0 passed"),
}


@pytest.mark.stress(5)
@pytest.mark.parametrize("name", [*OUTCOMES, *ALONE])
def test_a_run_has_its_exit_status_and_says_why(gate: Gate, name: str, baseline: Path) -> None:
    made, words, status, *texts = OUTCOMES.get(name) or ALONE[name]
    answer = gate(made, *words.split(), against=baseline if name in OUTCOMES else None)
    assert answer.status == status, answer.out
    assert answer.last_line.endswith(" skipped")
    assert [text for text in texts if text not in answer.out] == []
    assert status or made is NOISY or "for a rise of 10%" not in answer.out


def test_every_entry_of_a_fingerprint_but_the_code_s_own_must_fit() -> None:
    """What tells the code apart is the question itself."""
    assert set(fingerprint("cpu")) - set(HARD) == {"accuracy", "code"}
    for name in HARD:
        old, new = (hard({"fingerprint": FINGERPRINT | change}) for change in ({}, {name: "another"}))
        assert [each.name for each in differences(old, new)] == [name]


def test_of_several_devices_the_comparable_one_is_taken(gate: Gate, baseline: Path, tmp_path: Path) -> None:
    write_baseline(tmp_path / "all/another", MadeUp(seeds=(0,), fingerprint=FINGERPRINT | {"device": "Another"}))
    same = shutil.copytree(baseline, tmp_path / "all" / "same")
    answer = gate(MadeUp(), against=same.parent)
    assert answer.status == 0
    assert f"against: {same} (commit 0123456789ab, same fingerprint)" in answer.out


def test_two_noisy_seeds_are_undecided_and_a_second_look_with_fresh_ones_decides(gate: Gate, tmp_path: Path) -> None:
    """17% up at 2% of spread: two seeds give t of about 9 and 8 degrees of freedom, between the two levels."""
    small = MadeUp(variants=("single_device", "ring"), sizes=(4,), spread=0.02)
    first = small.but(luck=1, seeds=(100, 101), worse=ring_dq(1.17))
    noisy = write_baseline(tmp_path / "noisy", small)
    answer = gate(first, "--out", str(tmp_path / "out"), against=noisy)
    assert (answer.status, "1 undecided" in answer.out) == (3, True), answer.out
    assert '"label": "undecided"' in (tmp_path / "out" / "check.json").read_text()  # the action looks for it
    assert "the same run with seed=[102,103], then --second" in answer.out
    again = first.but(seeds=range(200, 216), luck=5)
    for second, status in ((first, 2), (again, 1), (again.but(worse=ring_dq(1)), 0)):
        answer = gate(first, "--second", str(write_run(tmp_path / "second", second)), against=noisy)
        assert answer.status == status, answer.out
        assert status != 1 or "after two looks" in answer.out


def test_an_excess_that_the_baseline_has_is_accepted_and_one_that_grew_is_not(gate: Gate, tmp_path: Path) -> None:
    accepted = write_baseline(tmp_path / "accepted", MadeUp(worse=ring_dq(1.6)))
    for factor, status, text in ((1.6, 0, "1 accepted"), (1.8, 1, "")):
        answer = gate(MadeUp(luck=1, worse=ring_dq(factor)), against=accepted)
        assert answer.status == status
        assert text in answer.out
