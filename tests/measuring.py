"""Compose, plan and measure a few cases inside one process, as the console command does."""

from collections.abc import Sequence
from pathlib import Path

import hydra
import pandas as pd
from omegaconf import DictConfig, OmegaConf

from accuracy.configuration import Configuration, read
from accuracy.grid import plan
from accuracy.locations import CONFIGS
from accuracy.pipeline import Pipeline
from accuracy.reference.cache import Cache

TINY = ("problem.seqlen=96", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8", "problem.batch=2")


def compose(*overrides: str, folders: Sequence[Path] = ()) -> tuple[DictConfig, Configuration]:
    search = [f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders)}]"] if folders else []
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composed = hydra.compose("config", overrides=[*search, *overrides])
    return composed, read(OmegaConf.to_container(composed, resolve=True), folders)  # type: ignore[arg-type]


def configuration(*overrides: str, folders: Sequence[Path] = ()) -> Configuration:
    return compose(*overrides, folders=folders)[1]


def measure(*overrides: str, folders: Sequence[Path] = ()) -> pd.DataFrame:
    """The rows of every planned case, declined ones included."""
    plans = plan(configuration(*TINY, *overrides, folders=folders), free_bytes=None)
    pipeline = Pipeline("test", Cache(None, 0.0))
    rows = []
    for each in plans:
        measured = pipeline.decline(each.case, each.decline) if each.decline else pipeline.measure(each.case)
        rows += measured.rows
    return pd.DataFrame(rows)
