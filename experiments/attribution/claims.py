"""What attribution claims about the places where a ring rounds, checked against its table.

Which rounding makes how much of the error? Shapley values over the places of a precision policy, of a table in which
one variant was measured under every combination of published and finer places. Independent roundings add in squares, so
the value of a set of places is the fall of the mean square error when they are made finer; a place's share is its mean
marginal fall over all orders (Shapley 1953). What is left with every place finer is the final rounding to the stored
dtype.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from accuracy.core.number import shapley
from accuracy.results.table import ALL_RANKS, ALL_TENSORS
from experiments.claim import Claim

BLOCKS = ("partial", "gradient_partial")
WIDE = ("out_accumulator", "lse", "merge", "dq_accumulator", "dkv_accumulator", "gradient_wire")
# What README's Answer is about:
KERNEL_PLACE = "probability_dtype"  # the kernel's own: single device has it too
FINAL = "final rounding"
FORWARD = ("out", "lse", "delta")  # what the backward rounds is nothing to these
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


def claims(results: pd.DataFrame) -> list[Claim]:
    found = [each for each in attributions(results) if each.tensor in ("out", "dq", "dk", "dv")]
    return [_blocks(found), _wide(found)]


def answer(results: pd.DataFrame) -> list[Claim]:
    """What README's Answer says: both claims."""
    return claims(results)


def _blocks(found: list[Attribution]) -> Claim:
    statement = "At least 80% of what a ring has beyond single device is the rounding of blocks' results to 16 bits."
    shares = {
        f"{each.variant} {each.tensor}": sum(each.excess.get(place, 0.0) for place in BLOCKS)
        for each in found
        if each.x_single_device > 1.02
    }
    if not shares:
        return Claim(statement, None, "no tensor is worse than single device's, or not every combination was measured")
    least = min(shares, key=lambda name: shares[name])
    return Claim(statement, shares[least] > 0.8, f"least of {len(shares)} tensors: {shares[least]:.0%} ({least})")


def _wide(found: list[Attribution]) -> Claim:
    statement = "No place that rounds to float32 makes 1% of any tensor's mean square error."
    shares = {
        f"{place} of {each.variant} {each.tensor}": abs(share)
        for each in found
        for place, share in each.shares.items()
        if place in WIDE
    }
    if not shares:
        return Claim(statement, None, "not measured")
    most = max(shares, key=lambda name: shares[name])
    return Claim(statement, shares[most] < 0.01, f"most: {shares[most]:.2%} ({most})")


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
