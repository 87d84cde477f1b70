"""What thousand_ranks claims about rounding and cost to 1,024 ranks, checked against its table."""

import pandas as pd

from accuracy.results.claim import Claim, largest_below
from accuracy.results.over_ranks import over_ranks
from accuracy.verdict.growth import Growth, fit_growth

RINGS = ("ring", "zigzag", "striped", "llama3_ring")
ROUNDED = ("out", "dq", "dk", "dv")
EXCESS = 1.5  # the portable rule of the gate
FROM = 64  # ranks, where world_size_growth ends


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["tensor"].notna()]
    rings = rows[rows["variant"].isin(RINGS)]
    rounded = rings[rings["tensor"].isin(ROUNDED)]
    sums = rows[(rows["variant"] == "llama3") & rows["tensor"].isin(("dk", "dv"))]
    return [
        _bounded(rounded),
        _exponents(f"From {FROM} ranks on, no ring's out, dq, dk or dv grows as fast as W^0.05.", rounded, -1.0, 0.05),
        _exponents(
            f"From {FROM} ranks on, lse of the rings that merge grows, no faster than the square root.",
            rings[(rings["tensor"] == "lse") & (rings["variant"] != "llama3_ring")], 0.0, 0.5,
        ),
        _exponents(f"From {FROM} ranks on, dk and dv of llama3 grow as W^0.5, within 0.15.", sums, 0.35, 0.65),
        _cost(rows),
        _worst(results[results["tensor"].isin(ROUNDED)]),
    ]  # fmt: skip


def _bounded(rows: pd.DataFrame) -> Claim:
    statement = f"Every ring stays below {EXCESS} times single device in out, dq, dk and dv at every world size."
    return largest_below(statement, rows, EXCESS)


def _worst(rows: pd.DataFrame) -> Claim:
    statement = "(Added after the run.) On the worst rank every ring but striped stays below 1.3 times single device."
    worst = over_ranks(rows[rows["variant"].isin(RINGS)], "max")
    if worst.empty:
        return Claim(statement, None, "not measured by rank")
    most = worst.groupby("variant")["x_single_device"].max()
    told = ", ".join(f"{variant} {times:.2f}" for variant, times in most.items())
    return Claim(statement, bool(most.drop("striped", errors="ignore").max() < 1.3), told)


def _exponents(statement: str, rows: pd.DataFrame, least: float, most: float) -> Claim:
    found = {}
    for key, group in rows[rows["world_size"] >= FROM].groupby(["variant", "tensor"]):
        fit = fit_growth(zip(group["world_size"], group["error_rel"], strict=True))
        if isinstance(fit, Growth):
            found[" ".join(map(str, key))] = fit.exponent
    if not found:
        return Claim(statement, None, f"fewer than three world sizes from {FROM} on")
    low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
    holds = all(least <= exponent <= most for exponent in found.values())
    return Claim(statement, holds, f"from {found[low]:.3f} ({low}) to {found[high]:.3f} ({high})")


def _cost(rows: pd.DataFrame) -> Claim:
    statement = "The seconds of a case grow no faster than its block pairs, W (W + 1) / 2."
    rings = rows[rows["variant"].isin(RINGS)]
    each = rings.groupby(["variant", "world_size"])["seconds"].min().unstack()  # of the others one may compile
    each = each[[size for size in each.columns if size >= 16]]
    if each.shape[1] < 2:
        return Claim(statement, None, "fewer than two world sizes from 16 on")
    pairs = pd.Series({size: size * (size + 1) / 2 for size in each.columns})
    growth = (each.div(pairs, axis=1)).pct_change(axis=1).iloc[:, 1:]
    worst = float(growth.max().max())
    seconds = ", ".join(f"{size}: {each[size].max():.1f} s" for size in each.columns)
    return Claim(statement, worst <= 0, f"seconds a pair change by {worst:+.0%} at most from size to size; {seconds}")
