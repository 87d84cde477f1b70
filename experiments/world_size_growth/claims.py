"""What world_size_growth claims about rounding and the world size, checked against its table."""

import numpy as np
import pandas as pd

from accuracy.verdict.growth import Growth, fit_growth
from experiments.claim import Claim, largest_below, over_ranks

RINGS = ("ring", "zigzag", "striped", "bpt_ring", "llama3_ring", "llama3_zigzag")
ROUNDED = ("out", "dq", "dk", "dv")  # lse is kept in float32
EXCESS = 1.5  # the portable rule of the gate: above it, more than rounding of blocks is at work


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["tensor"].notna()]
    rings = rows[rows["variant"].isin(RINGS) & rows["tensor"].isin(ROUNDED)]
    hybrids = rows[rows["variant"].isin(("llama3_ring", "llama3_zigzag")) & rows["tensor"].isin(("dk", "dv"))]
    unmerged = rows[rows["variant"].isin(("llama3", "llama3_ring", "llama3_zigzag", "ulysses"))]
    bounded = f"Every ring stays below {EXCESS} times single device in out, dq, dk and dv at every world size."
    rooted = "dk and dv of llama3, added in 16 bits hop by hop, grow like the square root of the world size."
    late = "(Added after the run.) From 16 ranks on, where the sum's rounding outweighs the kernel's, they do."
    cured = f"llama3 forward with a ring backward keeps dk and dv below {EXCESS} times single device."
    forward = "Where nothing is merged (llama3's forward, ulysses), out is as accurate as single device's, within 3%."
    return [
        largest_below(bounded, rings, EXCESS),
        _saturated(rings[rings["world_size"] >= 8]),
        _llama3_exponents(rooted, rows),
        _llama3_exponents(late, rows[rows["world_size"] >= 16]),
        largest_below(cured, hybrids, EXCESS),
        largest_below(forward, unmerged[unmerged["tensor"] == "out"], 1.03),
        _step(results),
    ]


def answer(results: pd.DataFrame) -> list[Claim]:
    """Return the claims of the README's Answer, as this table judges them."""
    rows = results[(results["rank"] == -1) & results["tensor"].notna()]
    ranks = results[(results["rank"] >= 0) & results["tensor"].isin(ROUNDED)]
    rings = ranks[ranks["variant"].isin(RINGS)]
    worst = over_ranks(ranks, "max")
    most = worst[(worst["variant"] == "llama3") & (worst["world_size"] == 64) & worst["tensor"].isin(("dk", "dv"))]
    largest = most["x_single_device"].max()
    hybrid, unsummed = _parts(ranks, "llama3_ring", "dk", "dv"), _parts(ranks, "llama3", "out", "dq")
    return [
        largest_below(
            "On every rank out, dq, dk and dv of rings stay within 1.7 times at every world size.", rings, 1.7
        ),
        Claim("At 64 ranks they are measured.", bool(rings["world_size"].max() == 64), f"{rings['world_size'].max()}"),
        Claim("llama3's dk and dv reach 5.0 times on the worst rank.", bool(4.95 <= largest < 5.05), f"{largest:.2f}"),
        largest_below("Cause: with a ring's backward llama3's dk and dv stay within 1.4 times.", hybrid, 1.4),
        largest_below("Cause: what llama3 does not add, out and dq, stays within 1.4 times.", unsummed, 1.4),
        _falls(rows),
    ]


def _parts(rows: pd.DataFrame, variant: str, *tensors: str) -> pd.DataFrame:
    return rows[(rows["variant"] == variant) & rows["tensor"].isin(tensors)]


def _falls(rows: pd.DataFrame) -> Claim:
    """Unit roundoffs are 8 apart; dk of the sum and lse's floor have a few hundredths of their own."""
    statement = "No bug: from bfloat16 to float16 every error falls by 7 to 9, as rounding does."
    means = rows[rows["tensor"].isin(ROUNDED)].groupby(["variant", "world_size", "tensor", "dtype"])["error_rel"].mean()
    falls = means.unstack("dtype").reindex(columns=["bfloat16", "float16"]).dropna()
    if falls.empty:
        return Claim(statement, None, "not measured in both")
    ratios = falls["bfloat16"] / falls["float16"]
    return Claim(statement, bool(ratios.between(7, 9).all()), f"from {ratios.min():.2f} to {ratios.max():.2f}")


def _saturated(late: pd.DataFrame) -> Claim:
    statement = "From world size 8 on, no ring's out, dq, dk or dv grows as fast as W^0.1."
    exponents = _exponents(late)
    if exponents.empty:
        return Claim(statement, None, "fewer than three world sizes from 8 on")
    fastest = exponents.idxmax()
    evidence = f"largest of {len(exponents)} exponents: {exponents.max():.3f} ({', '.join(map(str, fastest))})"
    return Claim(statement, bool(exponents.max() < 0.1), evidence)


def _llama3_exponents(statement: str, rows: pd.DataFrame) -> Claim:
    exponents = _exponents(rows[(rows["variant"] == "llama3") & rows["tensor"].isin(("dk", "dv"))])
    if exponents.empty:
        return Claim(statement, None, "fewer than three world sizes")
    evidence = f"exponents from {exponents.min():.2f} to {exponents.max():.2f}"
    return Claim(statement, bool(exponents.between(0.35, 0.65).all()), evidence)


def _step(results: pd.DataFrame) -> Claim:
    statement = (
        "(Added after the run.) Of the ranks that merge, ring's out has 1.15 to 1.25 times single device's error in "
        "bfloat16 at 2 ranks and at every size from there: a step at 2 ranks, then flat."
    )
    ring = results[(results["variant"] == "ring") & (results["dtype"] == "bfloat16") & (results["tensor"] == "out")]
    means = over_ranks(ring[ring["rank"] > 0], "mean")
    if means.empty:
        return Claim(statement, None, "not measured by rank")
    told = ", ".join(
        f"{size}: {mean:.2f}" for size, mean in zip(means["world_size"], means["x_single_device"], strict=True)
    )
    return Claim(statement, bool(means["x_single_device"].between(1.15, 1.25).all()), told)


def _exponents(rows: pd.DataFrame) -> pd.Series:
    """Growth exponent of each (variant, dtype, tensor) with at least three world sizes."""
    found = {}
    for key, group in rows.groupby(["variant", "dtype", "tensor"]):
        fit = fit_growth(zip(group["world_size"], group["error_rel"], strict=True))
        if isinstance(fit, Growth):
            found[key] = fit.exponent
    return pd.Series(found, dtype=np.float64)
