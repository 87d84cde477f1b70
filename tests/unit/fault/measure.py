"""The diagnose experiment on a small problem, for all planted faults and all healthy variants at once.

On one CPU thread: tensors this small gain nothing from a second one, and wait for it where the machine is shared.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from copy import deepcopy
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import pandas as pd
import torch
from omegaconf import OmegaConf

from accuracy.core import plugins
from accuracy.core.paths import CONFIGS, PACKAGE
from accuracy.execute.plan import measured as measured_case
from accuracy.execute.plan import plan
from accuracy.execute.settle import read_settled
from accuracy.measurement.pipeline import Measured as MeasuredCase
from accuracy.measurement.pipeline import Pipeline
from accuracy.results.table import HYPOTHESES_SCHEMA, RESULTS_SCHEMA
from accuracy.runtime.arithmetic import make_exact
from tests.measuring import composed
from tests.unit.fault import low_precision, planted

FAULTS = planted.PARTS | low_precision.PARTS
_GRIDS = dict(OmegaConf.load(CONFIGS / "experiment" / "diagnose.yaml"))["also"]
SMALL = (
    "experiment=diagnose", "problem.seqlen=144", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=16",
    "problem.softmax_scale=0.3", "world_size=[1,4]", "device=cpu",
    "unusable=record",  # what a variant of a package or of CUDA lacks here is a row with the reason
    "~kernel.auto", "~also.repeats",  # `healthy` and faults choose shapes
    *(f"~also.{name}" for name in _GRIDS if name.startswith(("shape_", "ranks", "many_ranks"))),
)  # fmt: skip
KERNEL = ("kernel=eager", "kernel.eager.probability_dtype=accumulate")
"""Weights stay unrounded: the kernel's own rounding would be single device's too, and hide a schedule's."""
KNOBS = {"query_chunk": 24, "key_chunk": 16}


def healthy() -> list[str]:
    """The variants on disk that have schedules of their own."""
    forwards = {path.stem: OmegaConf.load(path).get("forward") for path in (CONFIGS / "variant").glob("*.yaml")}
    return sorted(name for name, forward in forwards.items()
                  if forward != "callable" and (PACKAGE / "variant" / f"{forward}.py").exists())  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """The results of planted faults and healthy variants, and what hypotheses leave unexplained."""

    results: pd.DataFrame
    hypotheses: pd.DataFrame


def results(names: Iterable[str], *overrides: str) -> pd.DataFrame:
    """The table of the faults and healthy variants so named."""
    return measured(names, *overrides).results


def measured(names: Iterable[str], *overrides: str) -> Measured:
    """Measure the faults and healthy variants so named, each on the small problem with what the fault needs of it
    changed, and `overrides`, but for changes of grids that the fault's problem has dropped."""
    jobs: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        jobs.setdefault(FAULTS[name].where if name in FAULTS else (), []).append(name)
    cases: list[MeasuredCase] = []
    for where, same in jobs.items():
        dropped = "~also" in where
        fitting = [each for each in overrides if not (dropped and each.lstrip("~+").startswith("also"))]
        cases += _cases(same, (*where, *fitting))
    rows = pd.DataFrame([row for case in cases for row in case.rows])
    explained = pd.DataFrame([row for case in cases for row in case.table("hypotheses")])
    return Measured(rows.reindex(columns=RESULTS_SCHEMA.names), explained.reindex(columns=HYPOTHESES_SCHEMA.names))


def _cases(names: Sequence[str], overrides: Sequence[str]) -> list[MeasuredCase]:
    kernel = () if any(each.startswith("kernel=") for each in overrides) else KERNEL
    config = deepcopy(composed(*SMALL, *kernel, *overrides))
    config["variant"] = {name: node(name) for name in names}
    config.setdefault("also", None)
    pipeline, threads = Pipeline("selfcheck"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [measured_case(pipeline, each) for each in plan(read_settled(config), free_bytes=None)]
    finally:
        torch.set_num_threads(threads)


def side_by_side(jobs: Sequence[tuple[Sequence[str], Sequence[str]]], processes: int) -> Iterator[Measured]:
    """`measured` of each job, its names and overrides, in any order, so many at a time."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=make_exact) as pool:
        for each in as_completed([pool.submit(measured, names, *overrides) for names, overrides in jobs]):
            yield each.result()


def node(name: str) -> dict[str, Any]:
    """What a configuration says of a fault or healthy variant so named."""
    if name in FAULTS:
        source = f"tests.unit.fault.{'planted' if name in planted.PARTS else 'low_precision'}:{name}"
        found = {way: source if FAULTS[name].way in (way, "both") else "ring" for way in ("forward", "backward")}
        found["sharding"] = FAULTS[name].schedule.shardings[0]
    else:
        found = dict(OmegaConf.to_container(OmegaConf.load(CONFIGS / "variant" / f"{name}.yaml")))
    source = found["forward"] if "." in found["forward"] else f"accuracy.variant.{found['forward']}"
    return found | {name: KNOBS[name] for name, _ in plugins.default_options(plugins.load(source)) if name in KNOBS}
