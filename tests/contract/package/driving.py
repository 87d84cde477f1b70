"""Run a package's variant, or ours, on real ranks: its raw tensors, or its rows of the table."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pandas as pd
from torch import Tensor

from accuracy.core.case import Case
from accuracy.package import installed
from accuracy.results.table import TENSORS
from accuracy.runtime.sharding import cut
from tests import measuring
from tests.real_ranks import RealRanks

_MEASURED: dict[tuple[str, str], Any] = {}
WORLD = ("world=processes", "problem.heads=8")  # 8 heads on 2: ulysses of 2 ranks has a key/value head each
DISTRIBUTIONS = {
    "ring_flash_attn": "ring-flash-attn",
    "yunchang": "yunchang",
    "ring_attention_pytorch": "ring-attention-pytorch",
    "ringmaster": "axolotl-ringmaster",
    "transformer_engine": "transformer_engine",
}


def missing(variant: str) -> str | None:
    """Why a package's variant cannot run here, in the package's own words, or None."""
    found = (name for prefix, name in DISTRIBUTIONS.items() if variant.startswith(prefix))
    return next((reason for name in found if (reason := installed.unsupported(name))), None)


_pipeline = cache(measuring.pipeline)
"""Inputs and reference are shared by all tests."""


def case_of(variant: str, *words: str) -> Case:
    """The one case that the words make of a variant; kernel=eager unless they say otherwise."""
    return measuring.case_of(*measuring.TINY, *WORLD, "kernel=eager", f"variant={variant}", *words)


def results_of(pool: RealRanks, case: Case) -> list[dict[str, Tensor]]:
    """out, dq, dk, dv and, where it is given away, lse of every rank, in rank order."""

    def run() -> list[dict[str, Tensor]]:
        names = [name for name in TENSORS if name not in ("delta", "dsink")]
        whole = _pipeline().targets(case).given.tensors
        shards = zip(*(cut(x, case.variant.sharding, case.world_size) for x in whole), strict=True)
        results = pool.run(case, list(shards)).results
        return [{name: x for name, x in zip(names, each, strict=True) if x is not None} for each in results]

    return _once(case, "results", run)


def rows_of(pool: RealRanks, case: Case) -> pd.DataFrame:
    """The rows of all ranks together, by tensor; what is not given away is left out."""

    def run() -> pd.DataFrame:
        pipeline = _pipeline()
        pipeline.run_ranks = pool.run
        rows = pd.DataFrame(pipeline.measure(case).rows)
        failed = rows[rows["status"] == "failed"]
        assert failed.empty, failed["reason"].iloc[0]
        return rows[(rows["status"] == "ok") & (rows["rank"] == -1)].set_index("tensor")

    return _once(case, "rows", run)


def _once(case: Case, what: str, run: Callable[[], Any]) -> Any:
    """Our schedules stand beside several packages and give the same bits every time; a package is run every time."""
    if case.variant.forward.name == "callable":
        return run()
    if (case.id, what) not in _MEASURED:
        _MEASURED[case.id, what] = run()
    return _MEASURED[case.id, what]


def differing(pool: RealRanks, theirs: Case, ours: Case) -> set[str]:
    pairs = zip(results_of(pool, theirs), results_of(pool, ours), strict=True)
    return {name for a, b in pairs for name in a if not a[name].equal(b[name])}
