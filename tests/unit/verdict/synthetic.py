"""A results table by hand: one healthy variant, to be bent by a test."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pandas as pd

from accuracy.core.dtype import FORMATS, effective_dtype
from accuracy.results.table import ALL_RANKS, HYPOTHESES_SCHEMA, RESULTS_SCHEMA, STEPS_SCHEMA, TENSORS
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.facts import Facts
from accuracy.verdict.verdict import verdicts
from tests.unit.report.synthetic import Shape, identity

DTYPES = ("bfloat16", "float16", "float32", "float64")


def row(tensor: str, dtype: str, size: int, rank: int, seed: int, **changes: Any) -> dict[str, Any]:
    """A healthy row: 1.1 times single device's error, which is 1.2 floors."""
    form = FORMATS[effective_dtype(tensor, dtype)]
    floor = 0.41 * form.unit_roundoff
    content = identity(Shape(seqlen=512), "v", dtype, size, seed) | {
        "case_id": f"{dtype}-{size}-{seed}-{changes.get('inputs', 'gaussian')}", "kernel": "eager", "heads_kv": 4,
        "head_dim": 16, "softmax_scale": 0.25, "experiment": None, "code": None, "tensor": tensor, "rank": rank,
        "nonfinite": 0, "against": "", "sums": "", "error_rel": 1.32 * floor, "single_device_rel": 1.2 * floor,
        "floor_rel": floor,
        "error_rms": 1.32 * floor, "error_max": 5 * floor, "single_device_max": 5 * floor, "error_bias": 0.001 * floor,
        "single_device_bias": 0.0, "error_outward": 0.0, "single_device_outward": 0.0, "x_floor": 1.32,
        "reference_rms": 1.0 + 1e-9 * seed, "worst_token": 100, "significand_bits": float(form.precision),
    }  # fmt: skip
    return dict.fromkeys(RESULTS_SCHEMA.names) | content | changes


def rows(tensor: str, dtypes: Sequence[str], size: int = 4, seed: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Of all ranks together and of each."""
    ranks = (ALL_RANKS, *range(size))
    return [row(tensor, dtype, size, rank, seed, **changes) for dtype in dtypes for rank in ranks]


@cache
def healthy(sizes: tuple[int, ...] = (4,), dtypes: tuple[str, ...] = DTYPES, seeds: int = 2) -> pd.DataFrame:
    """Every tensor and rank of a variant that merely rounds."""
    cases = [(tensor, dtypes, size, seed) for size in sizes for seed in range(seeds) for tensor in TENSORS]
    return pd.DataFrame([each for case in cases for each in rows(*case)])


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


def explained(tensor: str, hypothesis: str, residual: float = 1e-15, **changes: Any) -> dict[str, Any]:
    """A row of `hypotheses/` of the healthy table's first float64 case."""
    content = {"case_id": "float64-4-0-gaussian", "tensor": tensor, "family": "one", "hypothesis": hypothesis,
               "parameter": "", "cause": f"{tensor} has {hypothesis}", "freedom": 0, "residual": residual,
               "expected": 1e-14, "from_best": 0.0, "tried": 9}  # fmt: skip
    return content | changes


def factor(tensor: str, number: float | str, **changes: Any) -> dict[str, Any]:
    """Return a hypothesis row of one float64 case which proves that a tensor is `number` times its reference."""
    content = {"cause": f"{tensor} is {number} times what it should be", "parameter": str(number), "freedom": 1}
    return explained(tensor, "a constant factor", case_id="float64-1-0-gaussian", **content | changes)


def label(results: pd.DataFrame, tensor: str, dtype: str, size: int = 4) -> str:
    found = verdicts(results)
    mine = found[(found["tensor"] == tensor) & (found["dtype"] == dtype) & (found["world_size"] == size)]
    return str(mine["label"].iloc[0])


Bent = tuple[str, Callable[[], pd.DataFrame], dict[tuple[str, str], str]]
"""A name, a table, and by tensor and dtype the label or finding that it must get."""


def mislabelled(cases: Sequence[Bent]) -> dict[tuple[str, ...], tuple[set[str], str]]:
    """What is said otherwise. All tables are judged at once, each as a variant of its own."""
    assert len({name for name, *_ in cases}) == len(cases)
    tables = [table().assign(variant=name) for name, table, _ in cases]
    found = verdicts(pd.concat([x.assign(case_id=x["variant"] + x["case_id"]) for x in tables]).infer_objects())
    said = {(each.variant, each.tensor, each.dtype): {each.label, each.finding} for each in found.itertuples()}
    expected = {(name, *key): label for name, _, labels in cases for key, label in labels.items()}
    return {key: (said[key], label) for key, label in expected.items() if label not in said[key]}


def facts_of(
    results: pd.DataFrame, hypotheses: Sequence[dict[str, Any]] = (), steps: Sequence[dict[str, Any]] = ()
) -> Facts:
    tables = [
        pd.DataFrame(rows, columns=schema.names) if rows else schema.empty_table().to_pandas()
        for rows, schema in ((steps, STEPS_SCHEMA), (hypotheses, HYPOTHESES_SCHEMA))
    ]
    (found,) = diagnoses(verdicts(results), results, *tables)
    return found
