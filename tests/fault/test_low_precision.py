"""Faults of 8-bit kernels from public reports are named in the tensors that they spoil; the healthy kernel is not."""

import pandas as pd
import pytest

from accuracy.config.compose import compose
from accuracy.execute.plan import measured, plan
from accuracy.execute.settle import read_settled
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results.table import RESULTS_SCHEMA, TENSORS
from accuracy.verdict.label import ROUNDING
from accuracy.verdict.verdict import verdicts
from tests.fault import measure
from tests.fault.low_precision import PARTS

SMALL = ("also=null", "inputs=gaussian", "dtype=bfloat16", "world_size=4", "seed=[0,1]")


def labels(fault: str) -> dict[str, dict[str, str]]:
    """Of the fault and of the healthy ring, by tensor."""
    config = compose(*measure.SMALL, *SMALL, *PARTS[fault].where)
    source = f"tests.fault.low_precision:{fault}"
    nodes = {"ring": ("ring", "ring"), fault: (source, source)}  # one of the faults writes to the inputs
    config["variant"] = {
        name: {"forward": forward, "backward": backward, "sharding": "contiguous"}
        for name, (forward, backward) in nodes.items()
    }
    pipeline = Pipeline("test", Cache(None, 0.0))
    rows = [row for each in plan(read_settled(config), free_bytes=None) for row in measured(pipeline, each).rows]
    found = verdicts(pd.DataFrame(rows).reindex(columns=RESULTS_SCHEMA.names))
    return {name: dict(zip(mine["tensor"], mine["label"], strict=True)) for name, mine in found.groupby("variant")}


@pytest.mark.stress(4)
@pytest.mark.parametrize("fault", PARTS)
def test_a_fault_in_8_bits_is_named_and_the_healthy_kernel_is_not(fault: str) -> None:
    found, part = labels(fault), PARTS[fault]
    assert set(found["ring"].values()) == {ROUNDING}
    accused = {tensor for tensor, label in found[fault].items() if label != ROUNDING}
    assert set(part.expected) <= accused <= set(TENSORS) - set(part.right)
    assert set(found[fault]) == set(TENSORS)
