"""What drift claims about pairs of paths, checked against its table."""

import pandas as pd

from accuracy.results.claim import Claim
from accuracy.verdict.drift import BEYOND, EQUAL, pairs

MERGED = ("out", "dq", "dk", "dv")


def claims(results: pd.DataFrame) -> list[Claim]:
    found = pairs(results)
    found = found[(found["rank"] == -1) & found["tensor"].notna() & (found["label"] != "")]
    return [_equal(found), _within(found), _lse(found), _less(found)]


def _equal(rows: pd.DataFrame) -> Claim:
    statement = "ulysses has single_device's bits in every tensor on eager."
    pair = {"single_device@1+eager", "ulysses@8+eager"}
    mine = rows[[{*each} == pair for each in zip(rows["path_a"], rows["path_b"], strict=True)]]
    if mine.empty:
        return Claim(statement, None, "not measured")
    return Claim(statement, bool((mine["label"] == EQUAL).all()), f"{mine['drift_differ'].sum():.0f} elements differ")


def _within(rows: pd.DataFrame) -> Claim:
    statement = "In out, dq, dk and dv every pair is within what two healthy roundings give."
    return _largest(statement, rows[rows["tensor"].isin(MERGED)], "drift_limit")


def _less(rows: pd.DataFrame) -> Claim:
    statement = "No pair's out, dq, dk or dv is further apart than independent errors would be."
    return _largest(statement, rows[rows["tensor"].isin(MERGED)], "drift_high")


def _largest(statement: str, rows: pd.DataFrame, bound: str) -> Claim:
    if rows.empty:
        return Claim(statement, None, "not measured")
    ratio = rows["drift_rel"] / rows[bound]
    worst = rows.loc[ratio.idxmax()]
    where = f"{worst['tensor']} of {worst['path_a']} and {worst['path_b']}"
    return Claim(statement, bool(ratio.max() <= 1), f"largest: {ratio.max():.2f} of {bound} ({where})")


def _lse(rows: pd.DataFrame) -> Claim:
    statement = "lse of torch_flash is beyond healthy roundings from every eager path."
    flash = rows["path_a"].str.endswith("+torch_flash") ^ rows["path_b"].str.endswith("+torch_flash")
    mine = rows[(rows["tensor"] == "lse") & flash]
    if mine.empty:
        return Claim(statement, None, "not measured")
    beyond = int((mine["label"] == BEYOND).sum())
    return Claim(statement, beyond == len(mine), f"{beyond} of {len(mine)} pairs")
