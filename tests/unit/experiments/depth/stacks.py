"""Tiny stacks, planned and measured inside one process."""

import pandas as pd

from accuracy.core.case import Case
from experiments.depth import plan
from experiments.depth.measure import Measurer
from experiments.depth.plan import Planned, Stack

SMALL = (
    "experiment=stack", "problem.seqlen=24", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8",
    "problem.batch=2", "device=cpu", "unusable=record",
    "stack.layers=3", "stack.width=24", "stack.feed_forward=32", "stack.vocabulary=48",
)  # fmt: skip


def planned(*overrides: str) -> list[Planned]:
    return plan.planned(plan.composed([*SMALL, *overrides]))[1]


def one(*overrides: str) -> tuple[Case, Stack]:
    (each,) = planned(*overrides)
    return each.case, each.stack


def measured(*overrides: str) -> pd.DataFrame:
    configuration, _ = plan.planned(plan.composed([*SMALL, "world_size=1"]))
    measurer = Measurer(configuration, "own")
    return pd.DataFrame([row for each in planned(*overrides) for row in measurer.measure(each)])
