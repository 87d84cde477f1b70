"""A made-up run folder with known growth: error_rel = a * W^p with a small spread over seeds."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core.dtype import FORMATS, tensor_dtype
from accuracy.results import storage, table

EXPONENTS = {"single_device": 0.0, "ring": 0.0, "zigzag": 0.02, "striped": 0.5, "llama3": 0.0, "llama3_ring": 0.05,
             "bpt_ring": 0.25, "ulysses": 0.0, "bpt": 0.0}  # fmt: skip
BASES = {"out": 0.5, "lse": 0.7, "dq": 0.9, "dk": 0.8, "dv": 0.75, "delta": 1.1}  # unit roundoffs of single device
HOSTILE = '"\'><img src=x onerror="window.hacked=1"><script>window.hacked=1</script></script>{{7*7}}$x$'


@dataclass(frozen=True)
class Shape:
    """What the made-up run covers."""

    variants: Sequence[str] = ("single_device", "ring", "zigzag", "striped", "llama3_ring")
    dtypes: Sequence[str] = ("bfloat16", "float16", "float64")
    world_sizes: Sequence[int] = (1, 2, 4, 8, 16)
    seeds: Sequence[int] = (0, 1, 2)
    tensors: Sequence[str] = tuple(BASES)
    seqlen: int = 1024
    bins: int = 64
    reasons: Sequence[str] = ("kernel torch_flash lacks float64; allowed: bfloat16, float16",)
    record: dict[str, Any] = field(default_factory=dict)
    exponents: dict[str, float] = field(default_factory=lambda: dict(EXPONENTS))


HOSTILE_SHAPE = Shape(
    ("single_device", HOSTILE), ("bfloat16",), (1, 2), reasons=(HOSTILE, HOSTILE),
    exponents={"single_device": 0.0, HOSTILE: 0.5},
    record={
        "command": HOSTILE, "experiment": HOSTILE, "config": {HOSTILE: HOSTILE}, "started": HOSTILE,
        "provenance": {HOSTILE: HOSTILE, "device": HOSTILE, "torch": HOSTILE, "git_commit": HOSTILE},
    },
)  # fmt: skip


def cases(shape: Shape) -> Iterator[dict[str, Any]]:
    for variant in shape.variants:
        for dtype in shape.dtypes:
            for size in [1] if variant in ("single_device", "bpt") else shape.world_sizes:
                for seed in shape.seeds:
                    yield identity(shape, variant, dtype, size, seed)


def identity(shape: Shape, variant: str, dtype: str, size: int, seed: int) -> dict[str, Any]:
    return {
        "case_id": hashlib.sha256(f"{variant}{dtype}{size}{seed}".encode()).hexdigest()[:12], "experiment": "adhoc",
        "variant": variant, "options": "key_chunk=64,query_chunk=128" if variant == "bpt" else "", "precision": "",
        "kernel": "eager" if dtype == "float64" else "torch_flash", "kernel_options": "", "inputs": "gaussian",
        "inputs_options": "", "dtype": dtype, "world": "simulated", "world_size": size,
        "sharding": variant if variant in ("zigzag", "striped") else "contiguous", "seed": seed, "mask": "causal",
        "softcap": 0.0, "batch": 1, "seqlen": shape.seqlen, "seqlen_q": shape.seqlen, "heads": 4, "heads_kv": 2,
        "head_dim": 64, "softmax_scale": 0.125, "device": "cpu", "code": "made-up", "status": table.OK, "reason": "",
    }  # fmt: skip


def metrics(error: float, single_device: float, floor: float) -> dict[str, Any]:
    return {
        "error_rel": error, "error_max": 8 * error, "error_mean": error / 3, "error_rms": error / 2,
        "single_device_rel": single_device, "single_device_max": 8 * single_device, "floor_rel": floor,
        "x_floor": error / floor, "x_single_device": error / single_device, "nonfinite": 0,
    }  # fmt: skip


def relative_error(shape: Shape, row: dict[str, Any], tensor: str, variant: str, size: int) -> float:
    """a * W^p, with one percent of spread over the seeds."""
    base = BASES[tensor] * FORMATS[tensor_dtype(tensor, row["dtype"])].unit_roundoff
    own = 1.0 if variant == "single_device" else 1.15
    return base * own * (1 + 0.01 * (row["seed"] - 1)) * size ** shape.exponents[variant]


def rows_of(shape: Shape, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    size = row["world_size"]
    for tensor in shape.tensors:
        error = relative_error(shape, row, tensor, row["variant"], size)
        single_device = relative_error(shape, row, tensor, "single_device", 1)
        for rank in range(-1, size):
            here = error * (1 if rank < 0 else 1.6 / math.sqrt(1 + rank))
            diff = 0.0 if row["variant"] == "single_device" else here * 0.6
            yield {
                **row, "tensor": tensor, "rank": rank, **metrics(here, single_device, 0.8 * single_device),
                "error_bias": here * 1e-3, "error_bias_t": 0.7, "diff_max": diff * 9, "diff_mean": diff * 0.25,
                "diff_rms": diff * 0.3, "diff_rel": diff, "floor_mean": 0.24 * single_device, "ulp_max": 12.0,
                "worst_batch": 0, "worst_token": 3, "worst_head": 1, "worst_dim": 5,
                "seconds": 0.01 * size + 0.02, "peak_bytes": 2_000_000 + 100_000 * size,
            }  # fmt: skip


def positions_of(shape: Shape, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Error along the sequence: larger for early tokens, a small step at the borders of the ranks' chunks."""
    width, size = shape.seqlen // shape.bins, row["world_size"]
    for tensor in shape.tensors:
        error = relative_error(shape, row, tensor, row["variant"], size)
        for place in range(shape.bins):
            chunk = place * size // shape.bins
            rms = error * (1 / math.sqrt(1 + place / 4) + 0.1 * (chunk % 2))
            yield {
                "case_id": row["case_id"], "tensor": tensor, "token_begin": place * width,
                "token_end": (place + 1) * width, "rank": chunk if row["sharding"] == "contiguous" else -1,
                "error_rms": rms, "error_max": rms * 4,
            }  # fmt: skip


def write_run(folder: Path, shape: Shape = Shape(), positions: bool = True) -> Path:
    """A run folder as the pipeline writes it, one file a case; of `reasons` every second is of a failed case."""
    ids = []
    for row in cases(shape):
        bins = {"positions": list(positions_of(shape, row))} if positions else None
        storage.write_case(folder, row["case_id"], rows_of(shape, row), bins)
        ids.append(row["case_id"])
    for place, reason in enumerate(shape.reasons):
        status = table.FAILED if place % 2 else table.UNSUPPORTED
        row = identity(shape, "ring", "float64", 32, 100 + place) | {"status": status, "reason": reason}
        storage.write_case(folder, row["case_id"], [row])
        ids.append(row["case_id"])
    storage.write_json(folder / "run.json", {**record(ids), **shape.record})
    return folder


LARGE = Shape(tuple(EXPONENTS), ("bfloat16", "float16"), (1, 2, 4, 8, 16, 32, 64), (0, 1, 2, 3, 4))


def write_large_run(folder: Path, shape: Shape = LARGE, rows: int = 50_000) -> Path:
    """So many rows, those of early seeds first, as a published folder has them; their digits do not compress."""
    folder.mkdir(parents=True, exist_ok=True)
    by_seed = sorted(cases(shape), key=lambda case: case["seed"])
    found = [row for case in by_seed for row in rows_of(shape, case)][:rows]
    frame = pd.DataFrame(found).reindex(columns=table.RESULTS_SCHEMA.names)
    noise = np.random.default_rng(0)
    for name in table.METRICS:
        frame[name] *= noise.uniform(0.99, 1.01, len(frame))
    for name in ("worst_token", "worst_head", "worst_dim"):
        frame[name] = noise.integers(0, 8192 if name == "worst_token" else 64, len(frame))
    measured = frame["case_id"].unique().tolist()
    bins = pd.DataFrame([bin for case in by_seed if case["case_id"] in measured for bin in positions_of(shape, case)])
    bins["error_rms"] *= noise.uniform(0.9, 1.1, len(bins))
    bins.reindex(columns=table.POSITIONS_SCHEMA.names).to_parquet(
        folder / "positions.parquet", schema=table.POSITIONS_SCHEMA
    )
    frame.to_parquet(folder / "results.parquet", schema=table.RESULTS_SCHEMA)
    storage.write_json(folder / "run.json", record(measured))
    return folder


def record(cases: Sequence[str]) -> dict[str, Any]:
    return {
        "schema_version": table.SCHEMA_VERSION, "experiment": "adhoc", "command": "accuracy variant=[ring,zigzag]",
        "argv": ["accuracy", "variant=[ring,zigzag]"],
        "config": {"variant": ["ring", "zigzag"], "problem": {"seqlen": 1024}},
        "started": "2026-11-21T08:00:00+00:00", "ended": "2026-11-21T08:01:00+00:00", "planned": len(cases),
        "cases": list(cases), "fingerprint": {"device": "cpu"},
        "provenance": {"git_commit": "0123456789abcdef", "dirty": False, "torch": "2.13.0", "device": "cpu",
                       "knobs": {"allow_tf32": False}},
    }  # fmt: skip


FEW = Shape(("single_device", "ring", "zigzag"), ("bfloat16", "float64"), (1, 2, 4), (0,))


def awkward_rows(folder: Path) -> pd.DataFrame:
    """Of a run whose last rows have ratios of zeros, infinities, and one that no division gives."""
    results = table.read_results(write_run(folder, FEW))
    results["single_device_bias"] = results["error_rms"] * np.random.default_rng(0).normal(size=len(results))
    awkward = results.index[results["tensor"].notna()][-4:]
    results.loc[awkward, "error_rel"] = [0.0, math.inf, 1.0, 1.0]
    results.loc[awkward, "floor_rel"] = [0.0, math.inf, 0.0, 3.0]
    results.loc[awkward, "x_floor"] = [1.0, 1.0, math.inf, 0.5]
    ratios = results["error_rel"] / results["single_device_rel"]
    return results.assign(x_single_device=results["x_single_device"].mask(results.index.isin(awkward), ratios))


def in_order(results: pd.DataFrame) -> pd.DataFrame:
    return results.sort_values(["case_id", "tensor", "rank"], ignore_index=True)
