"""A case in both worlds, of simulated ranks and of real ones."""

import pandas as pd

from accuracy.core.case import Case
from accuracy.measurement.pipeline import Pipeline

COSTS = ["seconds", "peak_bytes"]
FOR_INFERENCE = ("split_kv", "flash_attn_split")
NO_GRADIENTS = {f"the variant returns no {name}" for name in ("dq", "dk", "dv")}


def rows_of(pipeline: Pipeline, case: Case) -> pd.DataFrame:
    """A case's rows without what it costs."""
    return pd.DataFrame(pipeline.measure(case).rows).drop(columns=COSTS, errors="ignore")


def assert_same_bits(here: Pipeline, there: Pipeline, case: Case) -> None:
    """Every metric of every rank and tensor: one differing bit in an element moves at least the sum of squares."""
    expected = rows_of(here, case)
    missing = set(expected.loc[expected["status"] != "ok", "reason"])
    assert missing == (NO_GRADIENTS if case.variant.name in FOR_INFERENCE else set())
    found = rows_of(there, case)
    assert set(found["reason"]) == set(expected["reason"])
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
