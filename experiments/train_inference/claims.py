"""What train_inference claims of training paths beside decoding, without log-probabilities."""

import pandas as pd

from accuracy.results.claim import Claim
from accuracy.verdict.drift import BEYOND, pairs


def claims(results: pd.DataFrame) -> list[Claim]:
    found = pairs(results[results["layers"].isna()])
    out = found[(found["rank"] == -1) & (found["tensor"] == "out") & (found["label"] != "")]
    return [_beyond(out), _growth(out), _near(out), _nearer(out)]


def _of(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    return rows[rows["path_a"].str.split("@").str[0].str.split("/").str[0].isin(names)]


def _beyond(rows: pd.DataFrame) -> Claim:
    statement = "In out te_p2p on 64 ranks is beyond what two healthy roundings give, and no other path is."
    if rows.empty:
        return Claim(statement, None, "not measured")
    beyond = set(rows.loc[rows["label"] == BEYOND, "path_a"])
    return Claim(statement, beyond == {"te_p2p@64+eager"}, ", ".join(sorted(beyond)) or "none is beyond it")


def _growth(rows: pd.DataFrame) -> Claim:
    statement = (
        "From 2 to 64 ranks the drift of te_p2p grows by at least 1.5 times, that of zigzag by at most 1.3 times."
    )
    mean = rows.groupby("path_a")["drift_rel"].mean()
    try:
        te, zigzag = (mean[f"{name}@64+eager"] / mean[f"{name}@2+eager"] for name in ("te_p2p", "zigzag"))
    except KeyError:
        return Claim(statement, None, "not measured")
    return Claim(statement, bool(te >= 1.5 and zigzag <= 1.3), f"te_p2p {te:.2f}, zigzag {zigzag:.2f}")


def _near(rows: pd.DataFrame) -> Claim:
    statement = "llama3_zigzag and ulysses are below 0.2 of the expected difference from decoding."
    mine = _of(rows, "llama3_zigzag", "ulysses")
    if mine.empty:
        return Claim(statement, None, "not measured")
    most = float((mine["drift_rel"] / mine["drift_expected"]).max())
    return Claim(statement, most < 0.2, f"largest: {most:.3f}")


def _nearer(rows: pd.DataFrame) -> Claim:
    statement = "Decoding is nearer the reference than every zigzag and te_p2p."
    mine = _of(rows, "zigzag", "te_p2p")
    if mine.empty:
        return Claim(statement, None, "not measured")
    others = sorted(set(mine.loc[mine["nearer"] != "b", "path_a"]))
    return Claim(statement, not others, ", ".join(others) or f"all of {len(mine)} pairs")
