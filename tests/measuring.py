"""Compose, plan and measure a few cases inside one process, as the console command does."""

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from accuracy.config import resolve
from accuracy.config.read import Configuration
from accuracy.core.case import Case
from accuracy.core.errors import ConfigError
from accuracy.execute import dispatch
from accuracy.execute.plan import measured, plan
from accuracy.execute.settle import read_settled
from accuracy.measurement.pipeline import Pipeline
from accuracy.results import table
from accuracy.simulate.program import RunRanks

COSTS = ["seconds", "peak_bytes"]  # columns that differ between runs of equal cases
TINY = ("problem.seqlen=96", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=8", "problem.batch=2")


def composed(*overrides: str, folders: Sequence[Path] = ()) -> Any:
    """Plain dicts and lists, to be read only: the same words give the same object."""
    return _composed(overrides, tuple(folders))


@cache
def _composed(overrides: tuple[str, ...], folders: tuple[Path, ...]) -> Any:
    """Hydra sets values after it has loaded the chosen parts, which takes it a tenth of a second: once for a choice."""
    values = [each for each in overrides if not CHOICE.match(each)]
    config = deepcopy(_loaded(*(each for each in overrides if CHOICE.match(each)), folders=folders))
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(values), config)
    return OmegaConf.to_container(config, resolve=True)


CHOICE = re.compile(rf"[+~]*(?:{'|'.join(path.name for path in resolve.CONFIGS.iterdir() if path.is_dir())})(?:=|$)")


_loaded = cache(resolve.loaded)


def configuration(*overrides: str, folders: Sequence[Path] = ()) -> Configuration:
    return read_settled(composed(*overrides, folders=folders), folders)


def pipeline(run_ranks: RunRanks | None = None) -> Pipeline:
    """One that keeps no reference on the disk."""
    return Pipeline("test", run_ranks=run_ranks)


def cases(*overrides: str, folders: Sequence[Path] = ()) -> list[Case]:
    plans = plan(configuration(*overrides, folders=folders), None)
    return [each.case for each in plans if each.unsupported is None]


def refused(*overrides: str, folders: Sequence[Path] = ()) -> str:
    """The one line with which nothing is planned."""
    with pytest.raises(ConfigError) as caught:
        plan(configuration(*overrides, folders=folders), None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def case_of(*overrides: str, folders: Sequence[Path] = ()) -> Case:
    (only,) = cases(*overrides, folders=folders)
    return only


def run(folder: Path, *grids: Sequence[str], folders: Sequence[Path] = ()) -> pd.DataFrame:
    """Measure into a new folder as the command does, as the first grid says; its rows."""
    folder.mkdir()
    asked = [configuration(*words, folders=folders) for words in grids]
    plans = [each for grid in asked for each in plan(grid, None)]
    for _ in dispatch.measure(asked[0], folder, plans, None, lambda case: None):
        pass
    return table.read_results(folder)


def numbers(folder: Path, read: Callable[[Path], pd.DataFrame] = table.read_results) -> pd.DataFrame:
    """The rows of a run in an order of their own, without what differs between runs of equal cases."""
    rows = read(folder).drop(columns=COSTS, errors="ignore")
    return rows.sort_values(list(rows.columns), ignore_index=True)


def comparable(rows: pd.DataFrame, world: str = "") -> pd.DataFrame:
    """The rows, or one world's, in order, without what differs between worlds although the bits agree."""
    rows = rows[rows["world"] == world] if world else rows
    rows = rows.drop(columns=[*COSTS, "case_id", "world", "sums"])
    return rows.sort_values(["variant", "kernel", "world_size", "dtype", "seed", "tensor", "rank"], ignore_index=True)


USUAL = ("seeds", "probes", "peaked", "tied", "reruns")


def only_grids(*kept: str) -> Callable[..., Any]:
    """What takes the place of `resolve.with_given`, so that of a diagnosis' further grids these are left."""
    whole = resolve.with_given

    def fewer(config: dict[str, Any], given: Any) -> Any:
        also = {name: grid for name, grid in (config.get("also") or {}).items() if name in kept}
        return whole({**config, "also": also or None}, given)

    return fewer


def measure(*overrides: str, folders: Sequence[Path] = (), only: str = "") -> pd.DataFrame:
    """The rows of every planned case, or of one variant's, unsupported ones included."""
    plans = plan(configuration(*TINY, *overrides, folders=folders), free_bytes=None)
    plans = [each for each in plans if only in ("", each.case.variant.name)]
    by = pipeline()
    return pd.DataFrame([row for each in plans for row in measured(by, each).rows])
