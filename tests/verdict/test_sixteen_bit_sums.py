"""What TransformerEngine's ring keeps in 16 bits is called rounding that grows, not a bug; a fault in it is one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results import table
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import EXCESS_ROUNDING, LOGIC
from accuracy.verdict.verdict import verdicts
from tests.measuring import configuration

SHAPE = ("problem.seqlen=256", "problem.heads=2", "problem.heads_kv=2", "problem.head_dim=16", "kernel=eager",
         "variant=te_p2p", "dtype=[bfloat16,float32]", "world_size=[2,4,8,16]")  # fmt: skip
PLANTED = Path(__file__).with_name("te_p2p_halves_swapped.py")


def cases(*words: str) -> list[Case]:
    return [each.case for each in plan(configuration(*SHAPE, *words), free_bytes=None)]


def diagnosed(measured: Sequence[Case]) -> Facts:
    pipeline = Pipeline("test", Cache(None, 0.0))
    rows = [row for case in measured for row in pipeline.measure(case).rows]
    results = pd.DataFrame(rows, columns=table.RESULTS_SCHEMA.names)
    assert set(results["status"]) == {"ok"}
    steps, hypotheses = (schema.empty_table().to_pandas() for schema in (table.STEPS_SCHEMA, table.HYPOTHESES_SCHEMA))
    (found,) = diagnoses(verdicts(results), results, steps, hypotheses)
    return found


def test_a_ring_that_keeps_16_bits_rounds_more_and_grows_and_is_no_bug() -> None:
    found = diagnosed(cases())
    assert (found.label, found.is_bug) == (EXCESS_ROUNDING, False)
    assert found.dtypes == ("bfloat16",)
    assert "out" in found.tensors
    assert found.growth["out"].low > 0


def test_a_fault_in_it_is_a_bug() -> None:
    planted = [
        replace(case, variant=replace(case.variant, forward=replace(case.variant.forward, source=str(PLANTED))))
        for case in cases("world_size=[2,4]")
    ]
    found = diagnosed(planted)
    assert (found.label, found.is_bug) == (LOGIC, True)
    assert "out" in found.tensors
