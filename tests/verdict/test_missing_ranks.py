"""A variant without numbers at a number of ranks that was asked for is not called healthy."""

import pandas as pd
import pytest

from accuracy.core.errors import NOT_SHARED
from accuracy.results.table import FAILED, TOO_FEW_RANKS, UNSUPPORTED
from accuracy.verdict.diagnosis import too_little
from accuracy.verdict.label import MISSING_RANKS, ONE_RANK, ROUNDING
from tests.verdict.synthetic import facts_of, healthy

FOREIGN = "fn=mine.ring,layout=bshd"
ALONE = f"the function asks for nothing, {NOT_SHARED}"


def without(sizes: tuple[int, ...], status: str, reason: str, options: str = FOREIGN) -> pd.DataFrame:
    """A healthy function on 1, 2 and 3 ranks, whose cases of some sizes have no numbers."""
    rows = healthy((1, 2, 3), ("bfloat16",), seeds=2).assign(options=options)
    lost = rows["world_size"].isin(sizes)
    ended = rows[lost].drop_duplicates("case_id").assign(tensor=None, rank=-1, status=status, reason=reason)
    return pd.concat([rows[~lost], ended], ignore_index=True)


@pytest.mark.parametrize(
    ("sizes", "status", "reason", "options", "label"),
    [
        ((), "ok", "", FOREIGN, ROUNDING),
        ((2, 3), UNSUPPORTED, f"{TOO_FEW_RANKS}1 ranks here", FOREIGN, ONE_RANK),
        ((3,), UNSUPPORTED, f"{TOO_FEW_RANKS}2 ranks here", FOREIGN, ROUNDING),
        ((2, 3), FAILED, "rank 1: RuntimeError: on purpose", FOREIGN, ONE_RANK),
        ((2, 3), UNSUPPORTED, "problem.seqlen=511 does not divide", FOREIGN, ONE_RANK),
        ((3,), FAILED, "rank 2: RuntimeError: on purpose", FOREIGN, MISSING_RANKS),
        ((3,), UNSUPPORTED, "problem.seqlen=514 does not divide", FOREIGN, MISSING_RANKS),
        ((2, 3), UNSUPPORTED, ALONE, FOREIGN, ROUNDING),
        ((3,), UNSUPPORTED, "heads=4 do not divide", "", ROUNDING),  # what a variant of ours says is no gap
    ],
)
def test_a_size_without_a_number_is_no_healthy_one(
    sizes: tuple[int, ...], status: str, reason: str, options: str, label: str
) -> None:
    found = facts_of(without(sizes, status, reason, options))
    assert found.label == label, found.sentence
    assert all(str(size) in found.sentence for size in sizes if label == MISSING_RANKS)


def test_a_function_of_one_device_has_no_gap_where_its_length_does_not_divide() -> None:
    alone, odd = without((2,), UNSUPPORTED, ALONE), without((3,), UNSUPPORTED, "problem.seqlen=32 does not divide")
    assert too_little(pd.concat([alone[alone["world_size"] < 3], odd[odd["world_size"] == 3]])) == (None, {})
