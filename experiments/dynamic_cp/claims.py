"""What dynamic_cp claims about the distance of a world size from single device, checked against its table."""

import pandas as pd

from accuracy.results.claim import Claim

MERGED = ("out", "dq", "dk", "dv")


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & (results["world_size"] > 1) & (results["status"] == "ok")]
    apart = rows.assign(apart=rows["diff_rel"] / rows["single_device_rel"])
    return [
        _within("ulysses: out, dq, dk and dv have single device's bits.", apart, "ulysses", MERGED, 0.0, 0.0),
        _within("llama3: out and dq are within 0.1 of single device's error.", apart, "llama3", ("out", "dq"), 0, 0.1),
        _within("llama3: dk and dv are 0.5 to 1.5 of it apart.", apart, "llama3", ("dk", "dv"), 0.5, 1.5),
        _within("zigzag: every tensor is 0.7 to 1.6 of it apart.", apart, "zigzag", MERGED, 0.7, 1.6),
    ]


def _within(
    statement: str, rows: pd.DataFrame, variant: str, tensors: tuple[str, ...], least: float, most: float
) -> Claim:
    apart = rows.loc[(rows["variant"] == variant) & rows["tensor"].isin(tensors), "apart"]
    if apart.empty:
        return Claim(statement, None, "not measured")
    return Claim(statement, bool(apart.between(least, most).all()), f"{apart.min():.3f} to {apart.max():.3f}")
