import pandas as pd

from accuracy.results.table import STEPS_SCHEMA
from accuracy.verdict.traced import FINDINGS, traced

ROW = {"case_id": "a", "way": "forward", "rank": 2, "step": 1, "source": 0, "tensor": "out", "count": 3,
       "query_begin": 9, "query_last": 9, "key_begin": 2, "key_last": 4, "error_rel": 0.5}  # fmt: skip


def said(*rows: dict[str, object]) -> list[str]:
    return traced(pd.DataFrame([ROW | row for row in rows]).reindex(columns=STEPS_SCHEMA.names))


def test_a_finding_says_who_where_and_how_many() -> None:
    (line,) = said({"finding": "missing", "tensor": "", "step": -1})
    assert line == (
        "Accounting: forward of rank 2: 3 visible pairs of a query and a key in no kernel call (query 9, keys 2 to 4)."
    )
    (line,) = said({"finding": "added again", "way": "backward", "tensor": "dq", "query_begin": -1})
    assert line == (
        "Accounting: backward of rank 2, block 1: dq gets a block that no kernel call gave, or that it had already."
    )


def test_pairs_of_the_forward_come_first_and_the_rest_is_counted() -> None:
    kinds = [{"finding": name, "way": way} for name in reversed(FINDINGS) for way in ("backward", "forward")]
    (line,) = said(*kinds)
    assert line.startswith("Accounting: forward of rank 2, block 1: 3 visible pairs of a query and a key in no kernel")
    assert line.endswith(f"; {len(kinds) - 3} more findings.")


def test_a_step_that_leaves_the_band_is_said_beside_what_does_not_add_up() -> None:
    step = {"state": "partial", "band": 0.1, "nonfinite": 0}
    first, account = said(step, {"finding": "changed"})
    assert first.startswith("The first step that leaves the rounding band: forward of rank 2 with the keys of rank 0")
    assert account == "Accounting: forward of rank 2, block 1: 3 values of the returned out differ from the last" + (
        " running state."
    )
    assert said(step | {"error_rel": 0.01}) == [
        "Traced step by step, no partial and no running state leaves the rounding band."
    ]
    assert traced(pd.DataFrame()) == []
