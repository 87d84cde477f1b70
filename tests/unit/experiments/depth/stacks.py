"""Tiny stacks, planned and measured inside one process."""

from collections.abc import Sequence

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


def both(plans: Sequence[Planned]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of stacks, and those of the log-probabilities of two paths."""
    configuration, _ = plan.planned(plan.composed([*SMALL, "world_size=1"]))
    measurer = Measurer(configuration, "own")
    found = [measurer.measure(each) for each in plans]
    rows, words = ([row for each in found for row in each[place]] for place in (0, 1))
    return pd.DataFrame(rows), pd.DataFrame(words)


def measured(*overrides: str) -> pd.DataFrame:
    return both(planned(*overrides))[0]
