"""Run a package's variant, or ours, on real ranks: its raw tensors, or its rows of the table."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pandas as pd
from torch import Tensor

from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.measurement.pipeline import Pipeline
from accuracy.reference.cache import Cache
from accuracy.results.table import TENSORS
from accuracy.runtime.sharding import cut
from tests.measuring import TINY, configuration
from tests.real_ranks import RealRanks

_MEASURED: dict[tuple[str, str], Any] = {}
WORLD = ("world=processes", "problem.heads=8")  # 8 heads on 2: ulysses of 2 ranks has a key/value head each


@cache
def _pipeline() -> Pipeline:
    """Inputs and reference are shared by all tests."""
    return Pipeline("test", Cache(None, 0))


def case_of(variant: str, *words: str) -> Case:
    """The one case that the words make of a variant; kernel=eager unless they say otherwise."""
    (planned,) = plan(configuration(*TINY, *WORLD, "kernel=eager", f"variant={variant}", *words), None)
    assert planned.unsupported is None, planned.unsupported
    return planned.case


def shards_of(case: Case) -> list[tuple[Tensor, ...]]:
    """q, k, v, dout of every rank."""
    whole = _pipeline().targets(case).given.tensors
    return list(zip(*(cut(x, case.variant.sharding, case.world_size) for x in whole), strict=True))


def results_of(pool: RealRanks, case: Case) -> list[dict[str, Tensor]]:
    """out, dq, dk, dv and, where it is given away, lse of every rank, in rank order."""

    def run() -> list[dict[str, Tensor]]:
        names = [name for name in TENSORS if name not in ("delta", "dsink")]
        results = pool.run(case, shards_of(case)).results
        return [{name: x for name, x in zip(names, each, strict=True) if x is not None} for each in results]

    return _once(case, "results", run)


def unequal(theirs: list[dict[str, Tensor]], ours: list[dict[str, Tensor]]) -> set[str]:
    """The tensors of which a bit differs on some rank."""
    return {name for a, b in zip(theirs, ours, strict=True) for name in a if not a[name].equal(b[name])}


def _once(case: Case, what: str, measure: Callable[[], Any]) -> Any:
    """Our schedules stand beside several packages and give the same bits every time; a package is run every time."""
    if case.variant.forward.name == "callable":
        return measure()
    if (case.id, what) not in _MEASURED:
        _MEASURED[case.id, what] = measure()
    return _MEASURED[case.id, what]


def reference_of(case: Case) -> list[dict[str, Tensor]]:
    """The true out, lse, dq, dk, dv of every rank, float64."""
    whole = _pipeline().targets(case).reference
    shards = {name: cut(x, case.variant.sharding, case.world_size) for name, x in whole.items()}
    return [{name: x[rank] for name, x in shards.items()} for rank in range(case.world_size)]


def rows_of(pool: RealRanks, case: Case) -> pd.DataFrame:
    """The rows of all ranks together, by tensor; what is not given away is left out."""

    def measure() -> pd.DataFrame:
        pipeline = _pipeline()
        pipeline.run_ranks = pool.run
        rows = pd.DataFrame(pipeline.measure(case).rows)
        failed = rows[rows["status"] == "failed"]
        assert failed.empty, failed["reason"].iloc[0]
        return rows[(rows["status"] == "ok") & (rows["rank"] == -1)].set_index("tensor")

    return _once(case, "rows", measure)


def with_backward(case: Case, source: str) -> Case:
    """The case with another backward schedule, of a file."""
    return replace(case, variant=replace(case.variant, backward=replace(case.variant.backward, source=source)))
