"""The diagnose experiment on a small problem, for all planted faults and all healthy variants at once.

On one CPU thread: tensors this small gain nothing from a second one, and wait for it where the machine is shared.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from omegaconf import OmegaConf

from accuracy.config.compose import compose
from accuracy.core import plugins
from accuracy.core.paths import CONFIGS, PACKAGE
from accuracy.execute.plan import measured, plan
from accuracy.execute.settle import read_settled
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results.table import RESULTS_SCHEMA

SMALL = (
    "experiment=diagnose", "problem.seqlen=144", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=16",
    "problem.softmax_scale=0.3", "world_size=[1,4]", "device=cpu",
    "unusable=record",  # what a variant of a package or of CUDA lacks here is a row with the reason
    # weights stay unrounded: the kernel's own rounding would be single device's too, and hide a schedule's
    "kernel=eager", "kernel.eager.probability_dtype=accumulate", "~kernel.auto",
)  # fmt: skip
KNOBS = {"query_chunk": 24, "key_chunk": 16}


@dataclass(frozen=True)
class Fault:
    """A planted fault: what the verdict must say of which tensors, in some dtype and world size."""

    name: str
    expected: dict[str, str]


def faults() -> list[Fault]:
    """All of accuracy/selfcheck/fault, by name."""
    stems = sorted(path.stem for path in (PACKAGE / "selfcheck" / "fault").glob("[a-z]*.py"))
    return [Fault(stem, plugins.load(f"accuracy.selfcheck.fault.{stem}").EXPECTED) for stem in stems if stem != "base"]


def healthy() -> list[str]:
    """The variants on disk that have schedules of their own."""
    found = []
    for path in sorted((CONFIGS / "variant").glob("*.yaml")):
        forward = dict(OmegaConf.load(path)).get("forward")
        if (PACKAGE / "variant" / f"{forward}.py").exists() and forward != "callable":
            found.append(path.stem)
    return found


def results(names: Iterable[str], *overrides: str, done: Callable[[], Any] = lambda: None) -> pd.DataFrame:
    """The table of the faults and healthy variants so named. done: called after each case."""
    config = compose(*SMALL, *overrides)
    config["variant"] = {name: _node(name) for name in names}
    rows: list[Any] = []
    pipeline = Pipeline("selfcheck", Cache(None, 0.0))
    with _one_thread():
        for each in plan(read_settled(config), free_bytes=None):
            rows += measured(pipeline, each).rows
            done()
    return pd.DataFrame(rows).reindex(columns=RESULTS_SCHEMA.names)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _node(name: str) -> dict[str, Any]:
    path = Path(CONFIGS / "variant" / f"{name}.yaml")
    source = f"accuracy.selfcheck.fault.{name}"
    if path.exists():
        node: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
    else:
        node = {"forward": source, "backward": source, "sharding": plugins.load(source).SCHEDULE.shardings[0]}
    options = plugins.default_options(
        plugins.load(source if not path.exists() else f"accuracy.variant.{node['forward']}")
    )
    return node | {name: KNOBS[name] for name, _ in options if name in KNOBS}
