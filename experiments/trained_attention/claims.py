"""What trained_attention claims about a ring on attention that trains, checked against its table."""

import pandas as pd

from accuracy.core.path_text import pairs_of
from accuracy.results.claim import Claim

TENSORS = ("out", "dq", "dk", "dv")
MOST = 32  # ranks


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["error_rel"].notna() & results["tensor"].isin(TENSORS)]
    names = rows["inputs_options"].map(pairs_of).str["layer"].str.partition("@")
    rows = rows.assign(layer=names[0], step=pd.to_numeric(names[2]))
    ratios = rows[rows["world_size"] > 1]
    many, rings = ratios[ratios["world_size"] == MOST], ratios[ratios["variant"].isin(["ring", "zigzag"])]
    te, llama3 = many[many["variant"] == "te_p2p"], many[many["variant"] == "llama3"]
    outs = many[many["tensor"] == "out"].groupby(["step", "variant"])["x_single_device"].mean().unstack()
    out, of_keys = te[te["tensor"] == "out"], llama3[llama3["tensor"].isin(["dk", "dv"])]
    return [
        _between("ring and zigzag stay between 1.0 and 1.5 times single device's error.", rings, 1.0, 1.5),
        *[_grows(name, outs) for name in ("ring", "zigzag")],
        _between("te_p2p at 32 ranks has at least 2 times single device's error in out.", out, 2.0),
        Claim("te_p2p has the largest error of out at every step.", *_largest(outs)),
        _between("llama3 at 32 ranks has at least 1.5 times in dk and dv.", of_keys, 1.5),
        _first(rows[(rows["variant"] == "single_device") & (rows["tensor"] == "dq")]),
    ]  # fmt: skip


def _between(statement: str, rows: pd.DataFrame, least: float, most: float = float("inf")) -> Claim:
    if rows.empty:
        return Claim(statement, None, "not measured")
    low, high = rows["x_single_device"].min(), rows["x_single_device"].max()
    return Claim(statement, bool(least <= low and high <= most), f"{low:.2f} to {high:.2f} times")


def _grows(name: str, outs: pd.DataFrame) -> Claim:
    statement = f"{name}'s ratio of out at 32 ranks is at step 300 at least 1.05 times that of step 0."
    if name not in outs:
        return Claim(statement, None, "not measured")
    first, last = outs[name].iloc[0], outs[name].iloc[-1]
    return Claim(statement, bool(last >= 1.05 * first), f"{first:.2f} and {last:.2f}")


def _largest(outs: pd.DataFrame) -> tuple[bool | None, str]:
    if "te_p2p" not in outs:
        return None, "not measured"
    return bool((outs.idxmax(axis=1) == "te_p2p").all()), ", ".join(f"{x:.1f}" for x in outs["te_p2p"])


def _first(rows: pd.DataFrame) -> Claim:
    statement = "Single device's error of dq over its rounding floor is largest at step 0."
    if rows.empty:
        return Claim(statement, None, "not measured")
    mean = rows.groupby("step")["x_floor"].mean()
    return Claim(statement, bool(mean.idxmax() == 0), ", ".join(f"step {step}: {x:.2f}" for step, x in mean.items()))
