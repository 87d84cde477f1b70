"""Made-up runs with known changes between them: error = base * exp(noise of seed and cell) * what was planted."""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from accuracy.results import completeness, storage, table
from accuracy.results.completeness import Promise
from accuracy.results.derived import with_derived
from tests.unit.report.synthetic import Shape, identity, metrics, record

FINGERPRINT = {
    "accuracy": "0.1.0", "code": "c0de", "device": "Some GPU", "torch": "2.11.0", "cuda": "13.0",
    "cudnn": 91300, "flash_attn": "2.8.3", "flash_attn_4": None, "triton": "3.6.0", "knobs": {"allow_tf32": False},
}  # fmt: skip
TRUE = {"out": 1.1, "lse": 1.3, "dq": 1.15, "dk": 1.2, "dv": 1.22, "delta": 1.08}  # a ring's error over single device's
Row = dict[str, Any]
Cases = list[tuple[Row, list[Row]]]


@dataclass(frozen=True)
class MadeUp:
    """What a run covers and what is wrong with it.

    luck: another number, other rounding noise on the same inputs. worse: (variant, dtype, world size, tensor, seed) ->
    factor on the error. change: of a case's rows, None to lose it.
    """

    variants: Sequence[str] = ("single_device", "ring", "llama3")
    dtypes: Sequence[str] = ("bfloat16",)
    sizes: Sequence[int] = (2, 4)
    seeds: Sequence[int] = tuple(range(8))
    luck: int = 0
    spread: float = 0.004  # of world_size_growth on an H200, in the mean
    worse: Callable[[str, str, int, str, int], float] = lambda *cell: 1.0
    change: Callable[[Row, list[Row]], list[Row] | None] = lambda about, rows: rows
    fingerprint: dict[str, Any] = field(default_factory=lambda: dict(FINGERPRINT))
    provenance: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def but(self, **changes: Any) -> "MadeUp":
        return replace(self, **changes)


def write_run(folder: Path, made: MadeUp = MadeUp()) -> Path:
    """A run folder as `accuracy` writes it, with its plan, closed where the run ended."""
    shutil.rmtree(folder / "results", ignore_errors=True)
    (folder / "results").mkdir(parents=True)
    cases, rows, about = _made(made)
    for case_id in rows["case_id"].unique().to_pylist():
        path = folder / "results" / f"{case_id}.parquet"
        pq.write_table(rows.filter(pc.field("case_id") == case_id), path, use_dictionary=False, write_statistics=False)
    promises = {case["case_id"]: Promise(case["seed"], case["world_size"], case["code"]) for case, _ in cases}
    plan = completeness.new_plan(promises, about["fingerprint"]["device"])
    if about["ended"]:
        plan = completeness.closed_plan(plan, with_derived(rows.to_pandas()))
    storage.write_json(folder / "run.json", about | {"plan": plan})
    return folder


def write_baseline(folder: Path, made: MadeUp = MadeUp()) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _, rows, about = _made(made)
    pq.write_table(rows, folder / "results.parquet")
    storage.write_json(folder / "run.json", about)
    storage.write_sums(folder)
    return folder


def _made(made: MadeUp) -> tuple[Cases, pa.Table, Row]:
    cases = [(about, list(_rows(made, about))) for about in _cases(made)]
    rows = [row for about, each in cases for row in made.change(about, each) or []]
    frame = pd.DataFrame(rows).reindex(columns=table.RESULTS_SCHEMA.names)
    provenance = {"git_commit": "0123456789abcdef", "dirty": False, "driver": "580", **made.provenance}
    own = {"experiment": "made_up", "fingerprint": made.fingerprint, "provenance": provenance, **made.about}
    written = pa.Table.from_pandas(frame, table.RESULTS_SCHEMA, preserve_index=False)
    return cases, written, record([about["case_id"] for about, _ in cases]) | own


def case_id(variant: str, dtype: str, size: int, seed: int) -> str:
    return f"{variant}-{dtype}-{size}-{seed}"


def _cases(made: MadeUp) -> Iterator[Row]:
    for variant in made.variants:
        for dtype in made.dtypes:
            for size in [1] if variant == "single_device" else made.sizes:
                for seed in made.seeds:
                    yield identity(Shape(), variant, dtype, size, seed) | {
                        "case_id": case_id(variant, dtype, size, seed), "experiment": "made_up", "rank": -1,
                        "kernel": "flash_attn", "kernel_options": "deterministic=True", "inputs_options": "std=1.0",
                        "code": "c0de", "device": made.fingerprint["device"],
                    }  # fmt: skip


def _rows(made: MadeUp, about: Row) -> Iterator[Row]:
    variant, dtype, size, seed = (about[name] for name in ("variant", "dtype", "world_size", "seed"))
    for place, tensor in enumerate(TRUE):
        stream = np.random.default_rng([made.luck, sum(map(ord, variant + dtype)), size, seed, place])
        noise = math.exp(stream.normal(0, made.spread))
        floor = 3e-8 if tensor == "lse" else 1.7e-3 if dtype == "bfloat16" else 2.1e-4
        times = (1.0 if variant == "single_device" else TRUE[tensor]) * noise
        error = 1.3 * floor * times * made.worse(variant, dtype, size, tensor, seed)
        bias, gain = stream.normal(0, 0.01, 2)  # of 10,000 elements
        for rank in range(-1, size):
            yield {
                **about, "tensor": tensor, "rank": rank, **metrics(error, 1.3 * floor, floor), "seconds": 0.1,
                "error_bias": bias * error / 2, "error_gain": gain * error, "error_gain_se": 0.01 * error,
                "peak_bytes": 1,
            }  # fmt: skip


def with_error(row: Row, error: float, single_device: float) -> Row:
    ratios = {"x_single_device": error / single_device, "x_floor": error / row["floor_rel"]}
    return {**row, "error_rel": error, "single_device_rel": single_device, **ratios}


def not_finite(row: Row) -> Row:
    return {**row, "error_rel": math.inf, "error_max": math.inf, "nonfinite": 5}
