"""`accuracy experiment=diagnose` says by its exit status whether it found a bug."""

import pytest

from accuracy.cli import FAULTY
from tests.command_line import TINY, CommandLine

SHORT = (*TINY, "experiment=diagnose", "device=cpu", "also=null", "world_size=2", "kernel=eager",
         "dtype=[bfloat16,float64]")  # fmt: skip
WRONG = [f"+variant.wrong.{way}=tests.unit.fault.planted:dropped_key" for way in ("forward", "backward")]
CASES = {
    "rounding": (("variant=ring",), 0, "ring merely rounds"),
    "logic": (("variant=[]", *WRONG, "+variant.wrong.sharding=contiguous"), FAULTY, "wrong at any precision"),
}


@pytest.mark.parametrize("label", CASES)
def test_diagnose_exits_5_on_logic_and_0_on_rounding(accuracy: CommandLine, label: str) -> None:
    words, status, sentence = CASES[label]
    answer = accuracy(*SHORT, *words)
    assert sentence in answer.out
    assert answer.status == status
