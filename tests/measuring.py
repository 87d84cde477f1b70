"""Compose, plan and measure a few cases inside one process, as the console command does."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from accuracy.config import compose
from accuracy.config.read import Configuration
from accuracy.execute.plan import measured, plan
from accuracy.execute.settle import read_settled
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache

composed = cache(compose.compose)
"""Plain dicts and lists, to be read only: the same words give the same object."""
COSTS = ["seconds", "peak_bytes"]  # columns that differ between runs of equal cases
TINY = ("problem.seqlen=96", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8", "problem.batch=2")


def configuration(*overrides: str, folders: Sequence[Path] = ()) -> Configuration:
    return read_settled(composed(*overrides, folders=tuple(folders)), folders)


def measure(*overrides: str, folders: Sequence[Path] = (), only: str = "") -> pd.DataFrame:
    """The rows of every planned case, or of one variant's, unsupported ones included."""
    plans = plan(configuration(*TINY, *overrides, folders=folders), free_bytes=None)
    plans = [each for each in plans if only in ("", each.case.variant.name)]
    pipeline = Pipeline("test", Cache(None, 0.0))
    return pd.DataFrame([row for each in plans for row in measured(pipeline, each).rows])
