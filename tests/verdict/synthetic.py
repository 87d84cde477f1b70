"""A results table by hand: one healthy variant, to be bent by a test."""

from typing import Any

import pandas as pd

from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.results.table import ALL_RANKS, HYPOTHESES_SCHEMA, RESULTS_SCHEMA, STEPS_SCHEMA, TENSORS
from tests.report.synthetic import Shape, identity

DTYPES = ("bfloat16", "float16", "float32", "float64")
NOT_TRIED = (
    " Not tried: a full mask, windows, packed documents, a softcap, dropout, lengths that ranks cannot share,"
    " fewer queries than keys, grouped heads, batches, odd numbers of ranks, runs again,"
    " more than 512 tokens or 4 ranks."
)


def row(tensor: str, dtype: str, size: int, rank: int, seed: int, **changes: Any) -> dict[str, Any]:
    """A healthy row: 1.1 times single device's error, which is 1.2 floors."""
    u = FORMATS[effective_dtype(tensor, dtype)].unit_roundoff
    floor = 0.41 * u
    content = identity(Shape(seqlen=512), "v", dtype, size, seed) | {
        "case_id": f"{dtype}-{size}-{seed}-{changes.get('inputs', 'gaussian')}", "kernel": "eager", "heads_kv": 4,
        "head_dim": 16, "softmax_scale": 0.25, "experiment": None, "code": None, "tensor": tensor, "rank": rank,
        "nonfinite": 0, "against": "", "error_rel": 1.32 * floor, "single_device_rel": 1.2 * floor, "floor_rel": floor,
        "error_rms": 1.32 * floor, "error_max": 5 * floor, "single_device_max": 5 * floor, "error_bias": 0.001 * floor,
        "single_device_bias": 0.0, "error_outward": 0.0, "single_device_outward": 0.0, "x_floor": 1.32,
        "reference_rms": 1.0 + 1e-9 * seed, "worst_token": 100,
        "significand_bits": float(FORMATS[effective_dtype(tensor, dtype)].precision),
    }  # fmt: skip
    return dict.fromkeys(RESULTS_SCHEMA.names) | content | changes


def healthy(sizes: tuple[int, ...] = (4,), dtypes: tuple[str, ...] = DTYPES, seeds: int = 4) -> pd.DataFrame:
    """Every tensor and rank of a variant that merely rounds."""
    return pd.DataFrame(
        [
            row(tensor, dtype, size, rank, seed)
            for dtype in dtypes
            for size in sizes
            for seed in range(seeds)
            for tensor in TENSORS
            for rank in (ALL_RANKS, *range(size))
        ]
    )


def bend(table: pd.DataFrame, where: dict[str, Any], **changes: Any) -> pd.DataFrame:
    """The table with columns changed in the rows that match; a function gets the old values."""
    match = pd.Series(True, index=table.index)
    for name, value in where.items():
        match &= table[name].isin(value if isinstance(value, tuple) else (value,))
    table = table.copy()
    for name, value in changes.items():
        new = value(table.loc[match, name]) if callable(value) else value
        table[name] = table[name].astype(object if table[name].isna().all() else table[name].dtype)
        table.loc[match, name] = new
        table[name] = table[name].infer_objects()
    return table


def no_more() -> tuple[pd.DataFrame, ...]:
    """Neither steps nor hypotheses."""
    return tuple(schema.empty_table().to_pandas() for schema in (STEPS_SCHEMA, HYPOTHESES_SCHEMA))
