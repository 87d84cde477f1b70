"""Which rounding makes how much of the error? Shapley values over the places of a precision policy.

In: a table in which one variant was measured under every combination of published and finer places. Out: the share of
the mean square error that each place makes, tensor by tensor. Independent roundings add in squares, so the value of a
set of places is the fall of the mean square error when they are made finer; a place's share is its mean marginal fall
over all orders (Shapley 1953). What is left with every place finer is the final rounding to the stored dtype.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from accuracy.core.number import shapley
from accuracy.results.table import ALL_RANKS, ALL_TENSORS

KERNEL_PLACE = "probability_dtype"  # the kernel's own: single device has it too
FINAL = "final rounding"
NAMES = {
    "partial": "block partial (out)",
    "gradient_partial": "block partial (gradients)",
    "out_accumulator": "out accumulator",
    "lse": "lse",
    "merge": "merge formula",
    "dq_accumulator": "dq accumulator",
    "dkv_accumulator": "dk, dv accumulators",
    "wire": "keys and values that travel",
    "gradient_wire": "gradients that travel",
    KERNEL_PLACE: "kernel's P and dS",
    FINAL: FINAL,
}
FORWARD = ("out", "lse", "delta")
BACKWARD_PLACES = frozenset(("gradient_partial", "dq_accumulator", "dkv_accumulator", "gradient_wire"))
PUBLISHED_KERNEL = "input"


@dataclass(frozen=True)
class Attribution:
    """Of one tensor. shares: by place, of the whole mean square error, adding up to 1; excess: by place that single
    device does not have, of the variant's excess over single device; x_single_device: of the published policy."""

    variant: str
    dtype: str
    world_size: int
    tensor: str
    shares: dict[str, float]
    excess: dict[str, float]
    x_single_device: float


def attributions(results: pd.DataFrame) -> list[Attribution]:
    """Every tensor of every variant whose places were switched in all combinations; tensors in the table's order."""
    rows = results[(results["rank"] == ALL_RANKS) & results["tensor"].notna() & results["error_rms"].notna()]
    if rows.empty or rows["precision"].nunique() < 2:
        return []
    finer: list[Any] = [_finer(*each) for each in zip(rows["precision"], rows["kernel_options"], strict=True)]
    rows = rows.assign(_finer=pd.Series(finer, index=rows.index, dtype=object))
    found = []
    keys = ["variant", "options", "kernel", "dtype", "world_size", "inputs", "seqlen", "tensor"]
    for (variant, _, _, dtype, size, _, _, tensor), same in rows.groupby(keys, sort=False, dropna=False):
        if tensor in FORWARD:  # what the backward rounds is nothing to it
            same = same.assign(_finer=same["_finer"].map(lambda finer: finer - BACKWARD_PLACES))
        groups: dict[Any, pd.DataFrame] = dict(iter(same.groupby("_finer")))
        value = {frozenset(finer): float((each["error_rms"] ** 2).mean()) for finer, each in groups.items()}
        places = _places(value)
        if not places or tensor not in ALL_TENSORS:
            continue
        published, total = groups[frozenset()], value[frozenset()]
        ratio = float((published["error_rel"] / published["single_device_rel"]).mean())
        absolute = shapley(value, places) | {FINAL: value[frozenset(places)]}
        beyond = total * (1 - 1 / ratio**2) if ratio > 1 else 0.0
        own = {place: share for place, share in absolute.items() if place not in (KERNEL_PLACE, FINAL) and beyond > 0}
        shares, excess = (
            {x: share / by for x, share in part.items()} for part, by in ((absolute, total), (own, beyond))
        )
        found.append(Attribution(str(variant), str(dtype), int(str(size)), str(tensor), shares, excess, ratio))
    return sorted(found, key=lambda each: ALL_TENSORS.index(each.tensor))


def _finer(precision: object, kernel_options: object) -> frozenset[str]:
    """The places that a row's case has finer than published."""
    pairs = [pair.split("=") for pair in str(precision or "").split(",") if "=" in pair]
    kernel = dict(pair.split("=") for pair in str(kernel_options or "").split(",") if "=" in pair)
    rounded = kernel.get(KERNEL_PLACE, PUBLISHED_KERNEL) == PUBLISHED_KERNEL
    return frozenset([place for place, _ in pairs] + ([] if rounded else [KERNEL_PLACE]))


def _places(value: dict[frozenset[str], float]) -> tuple[str, ...]:
    """The largest set of places that was measured in all combinations."""
    for largest in sorted(value, key=len, reverse=True):
        names = sorted(largest)
        subsets = (frozenset(each) for size in range(len(names) + 1) for each in combinations(names, size))
        if len(names) > 1 and all(subset in value for subset in subsets):
            return tuple(names)
    return ()
