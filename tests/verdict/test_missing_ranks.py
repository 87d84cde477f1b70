"""A variant without numbers at a number of ranks that was asked for is not called healthy."""

import pandas as pd
import pytest

from accuracy.core.errors import NOT_SHARED
from accuracy.results import table
from accuracy.results.table import FAILED, TOO_FEW_RANKS, UNSUPPORTED
from accuracy.verdict.diagnosis import diagnoses, too_little
from accuracy.verdict.label import MISSING_RANKS, ONE_RANK, ROUNDING
from accuracy.verdict.verdict import verdicts
from tests.verdict.synthetic import healthy

FOREIGN = "fn=mine.ring,layout=bshd"


def without(sizes: tuple[int, ...], status: str, reason: str, options: str = FOREIGN) -> pd.DataFrame:
    """A healthy function on 1, 2 and 3 ranks, whose cases of some sizes have no numbers."""
    rows = healthy((1, 2, 3), ("bfloat16",), seeds=2).assign(options=options)
    lost = rows["world_size"].isin(sizes)
    ended = rows[lost].drop_duplicates("case_id").assign(tensor=None, rank=-1, status=status, reason=reason)
    return pd.concat([rows[~lost], ended], ignore_index=True)


@pytest.mark.parametrize(
    ("sizes", "status", "reason", "label"),
    [
        ((), "ok", "", ROUNDING),
        ((2, 3), UNSUPPORTED, f"{TOO_FEW_RANKS}1 ranks here", ONE_RANK),
        ((3,), UNSUPPORTED, f"{TOO_FEW_RANKS}2 ranks here", ROUNDING),
        ((2, 3), FAILED, "rank 1: RuntimeError: on purpose", ONE_RANK),
        ((2, 3), UNSUPPORTED, "problem.seqlen=511 does not divide", ONE_RANK),
        ((3,), FAILED, "rank 2: RuntimeError: on purpose", MISSING_RANKS),
        ((3,), UNSUPPORTED, "problem.seqlen=514 does not divide", MISSING_RANKS),
        ((2, 3), UNSUPPORTED, f"the function asks for nothing, {NOT_SHARED}", ROUNDING),
    ],
)
def test_a_size_without_a_number_is_no_healthy_one(
    sizes: tuple[int, ...], status: str, reason: str, label: str
) -> None:
    results = without(sizes, status, reason)
    empty = (schema.empty_table().to_pandas() for schema in (table.STEPS_SCHEMA, table.HYPOTHESES_SCHEMA))
    (found,) = diagnoses(verdicts(results), results, *empty)
    assert found.label == label, found.sentence
    assert all(str(size) in found.sentence for size in sizes if label == MISSING_RANKS)


def test_a_function_of_one_device_has_no_gap_where_its_length_does_not_divide() -> None:
    parts = {2: f"the function asks for nothing, {NOT_SHARED}", 3: "problem.seqlen=32 does not divide"}
    tables = [without((size,), UNSUPPORTED, reason) for size, reason in parts.items()]
    kept = tables[0][tables[0]["world_size"] < 3]
    assert too_little(pd.concat([kept, tables[1][tables[1]["world_size"] == 3]])) == (None, {})


def test_what_a_variant_of_ours_says_that_it_cannot_is_no_gap() -> None:
    results = without((3,), UNSUPPORTED, "heads=4 do not divide", options="")
    empty = (schema.empty_table().to_pandas() for schema in (table.STEPS_SCHEMA, table.HYPOTHESES_SCHEMA))
    (found,) = diagnoses(verdicts(results), results, *empty)
    assert found.label == ROUNDING
