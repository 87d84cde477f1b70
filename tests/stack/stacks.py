"""Tiny stacks, planned and measured inside one process."""

import pandas as pd
import torch

from accuracy.core.case import Case, Stack
from accuracy.execute.plan import Planned, plan
from accuracy.execute.plan import measured as measured_by
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from tests.measuring import configuration

SMALL = (
    "problem.seqlen=24", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8", "problem.batch=2",
    "kernel=eager", "device=cpu", "unusable=record",
    "stack.layers=3", "stack.width=24", "stack.feed_forward=32", "stack.vocabulary=48",
)  # fmt: skip


def planned(*overrides: str) -> list[Planned]:
    return plan(configuration(*SMALL, *overrides), free_bytes=None)


def one(*overrides: str) -> tuple[Case, Stack]:
    (each,) = planned(*overrides)
    assert each.case.stack is not None
    return each.case, each.case.stack


def measured(*overrides: str) -> pd.DataFrame:
    torch.manual_seed(0)  # nothing may depend on it
    pipeline = Pipeline("test", Cache(None, 0.0))
    rows = []
    for each in planned(*overrides):
        rows += measured_by(pipeline, each).rows
    return pd.DataFrame(rows)
