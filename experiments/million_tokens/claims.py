"""What million_tokens claims about a million tokens, checked against its table."""

import pandas as pd

from accuracy.results.claim import Claim, largest_below

ROUNDED = ("out", "dq", "dk", "dv")
RINGS = ("ring", "zigzag", "llama3_ring")


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["tensor"].notna()]
    rings = rows[rows["variant"].isin(RINGS) & (rows["world_size"] > 1)]
    rounded = rings[rings["tensor"].isin(ROUNDED)]
    return [
        _single_device(rows[(rows["variant"] == "single_device") & rows["tensor"].isin(ROUNDED)]),
        _below(rounded, 1.3),
        _flat(rounded, 1.05),
        _lse(rings[rings["tensor"] == "lse"]),
        _forward(rings[(rings["variant"] == "llama3_ring") & (rings["tensor"] == "out")]),
    ]


def _single_device(rows: pd.DataFrame) -> Claim:
    statement = "Single device over a million tokens stays below 2 floors in out, dq, dk and dv."
    return largest_below(statement, rows, 2.0, "x_floor")


def _below(rows: pd.DataFrame, bound: float) -> Claim:
    statement = f"Every ring stays below {bound} times single device in out, dq, dk and dv."
    return largest_below(statement, rows, bound)


def _flat(rows: pd.DataFrame, bound: float) -> Claim:
    statement = "256 ranks are not 5% less accurate than 64 in out, dq, dk and dv."
    table = rows.pivot_table(index=["variant", "tensor"], columns="world_size", values="error_rel")
    if not {64, 256} <= set(table.columns):
        return Claim(statement, None, "64 and 256 ranks were not both measured")
    growth = table[256] / table[64]
    return Claim(statement, bool(growth.max() < bound), f"largest: {growth.max():.3f} ({', '.join(growth.idxmax())})")


def _lse(rows: pd.DataFrame) -> Claim:
    statement = "lse of ring and zigzag is 1.2 to 2.5 times single device's at 64 ranks, 1.5 to 2.5 times that at 256."
    merged = rows[rows["variant"].isin(("ring", "zigzag"))]
    table = merged.pivot_table(index="variant", columns="world_size", values="x_single_device")
    if not {64, 256} <= set(table.columns):
        return Claim(statement, None, "64 and 256 ranks were not both measured")
    growth = table[256] / table[64]
    holds = table[64].between(1.2, 2.5).all() and growth.between(1.5, 2.5).all()
    evidence = (
        f"{table[64].min():.2f} to {table[64].max():.2f}, then {growth.min():.2f} to {growth.max():.2f} times that"
    )
    return Claim(statement, bool(holds), f"{evidence}; relative error {merged['error_rel'].max():.1e} at most")


def _forward(rows: pd.DataFrame) -> Claim:
    statement = "llama3_ring, whose forward merges nothing, has single device's out within 3%."
    return largest_below(statement, rows, 1.03)
