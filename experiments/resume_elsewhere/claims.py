"""What resume_elsewhere claims about one sequence on other numbers of ranks, checked against its table."""

import pandas as pd

from accuracy.results.claim import Claim
from accuracy.verdict.drift import BEYOND, pairs


def claims(results: pd.DataFrame) -> list[Claim]:
    found = pairs(results)
    found = found[(found["rank"] == -1) & found["tensor"].notna() & (found["label"] != "")]
    name_a, name_b = (found[side].str.split("[@/]", regex=True).str[0] for side in ("path_a", "path_b"))
    found = found.assign(of=name_a.where(name_a == name_b, ""))
    return [_within(found), _zigzag(found), _sums(found), _ulysses(found)]


def _within(rows: pd.DataFrame) -> Claim:
    statement = "No pair is beyond what two healthy roundings give in out and dq."
    mine = rows[rows["tensor"].isin(["out", "dq"])]
    if mine.empty:
        return Claim(statement, None, "not measured")
    beyond = int((mine["label"] == BEYOND).sum())
    return Claim(statement, beyond == 0, f"{beyond} of {len(mine)}")


def _zigzag(rows: pd.DataFrame) -> Claim:
    statement = "Two sizes of zigzag are 0.7 to 1.2 times as far apart as independent errors, in out."
    mine = rows[(rows["of"] == "zigzag") & (rows["tensor"] == "out")]
    if mine.empty:
        return Claim(statement, None, "not measured")
    ratio = mine["drift_rel"] / mine["drift_expected"]
    return Claim(statement, bool(ratio.between(0.7, 1.2).all()), f"{ratio.min():.2f} to {ratio.max():.2f}")


def _sums(rows: pd.DataFrame) -> Claim:
    statement = "dk or dv of llama3 and of te_p2p is beyond it for a pair of sizes."
    mine = rows[rows["tensor"].isin(["dk", "dv"])]
    count = {name: int((mine.loc[mine["of"] == name, "label"] == BEYOND).sum()) for name in ("llama3", "te_p2p")}
    if mine.empty:
        return Claim(statement, None, "not measured")
    return Claim(statement, min(count.values()) > 0, ", ".join(f"{name} {number}" for name, number in count.items()))


def _ulysses(rows: pd.DataFrame) -> Claim:
    statement = "ulysses on 2 and 8 ranks differs in fewer than 0.1% of the elements of every tensor."
    mine = rows[rows["of"] == "ulysses"]
    if mine.empty:
        return Claim(statement, None, "not measured")
    elements = 256 * 8 * mine["tensor"].map(lambda name: 1 if name == "lse" else 32)
    share = float((mine["drift_differ"] / elements).max())
    return Claim(statement, share < 0.001, f"largest: {share:.4%}")
