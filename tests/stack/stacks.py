"""Tiny stacks, planned and measured inside one process."""

import pandas as pd
import torch

from accuracy.stack.case import StackCase, plan_stacks
from accuracy.stack.measure import Measurer
from tests.measuring import configuration

SMALL = (
    "problem.seqlen=24", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8", "problem.batch=2",
    "kernel=eager", "device=cpu", "unusable=record",
    "stack.layers=3", "stack.width=24", "stack.feed_forward=32", "stack.vocabulary=48",
)  # fmt: skip


def planned(*overrides: str) -> list[StackCase]:
    return plan_stacks(configuration(*SMALL, *overrides), free_bytes=None)


def measured(*overrides: str) -> pd.DataFrame:
    torch.manual_seed(0)  # nothing may depend on it
    measurer = Measurer("test")
    return pd.DataFrame([row for each in planned(*overrides) for row in measurer.measure(each)])
