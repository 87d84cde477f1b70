"""What attribution claims about the places where a ring rounds, checked against its table."""

import pandas as pd

from accuracy.results.claim import Claim
from accuracy.verdict.attribution import Attribution, attributions

BLOCKS = ("partial", "gradient_partial")
WIDE = ("out_accumulator", "lse", "merge", "dq_accumulator", "dkv_accumulator", "gradient_wire")
# What README's Answer is about:
CASE = {"variant": "ring", "precision": ""}


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
