"""What te_real_ranks claims of TransformerEngine's own code beside its twins, checked against its table."""

import pandas as pd

from accuracy.package.twins import OURS
from accuracy.results.claim import Claim, beside
from accuracy.results.table import ALL_RANKS

THEIRS = {name: ours for name, ours in OURS.items() if name.startswith("transformer_engine")}
TENSORS, SUMS = ("out", "dq", "dk", "dv"), ("dk", "dv")
ORDER = 0.02  # what another order of NCCL's sum may change
FLOAT32 = "out_accumulator=accumulate,dq_accumulator=accumulate,dkv_accumulator=accumulate,gradient_wire=accumulate"
LONGER, LARGER = 1.1, 1.5
RANGES = {"out": (1.15, 1.35), "dk": (1.2, 1.6), "dv": (1.2, 1.6)}
AS_ONE_DEVICE, SAME_DIGITS = 0.02, 0.001


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["status"] == "ok") & results["tensor"].isin(TENSORS)]
    whole = rows[(rows["rank"] == ALL_RANKS) & (rows["world_size"] == 2)]
    return [
        _same_digits(rows),
        _pairs(rows),
        *_cost(rows),
        _worst_rank(rows),
        _within(
            "all_gather's out and dq are single device's at 2 ranks, to 2%.", whole, "all_gather", ("out", "dq"),
            AS_ONE_DEVICE,
        ),
        _within("a2a is single device at 2 ranks, to 0.1%.", whole, "a2a", TENSORS, SAME_DIGITS),
    ]  # fmt: skip


def _same_digits(rows: pd.DataFrame) -> Claim:
    statement = "p2p, all_gather and a2a have the twins' error in every digit, but for NCCL's order of sums at 4 ranks."
    both = beside(rows[rows["precision"] == ""], THEIRS)
    if both.empty:
        return Claim(statement, None, "not measured")
    summed = both["variant"].str.endswith("all_gather") & both["tensor"].isin(SUMS) & (both["world_size"] > 2)
    away = (both["ratio"] - 1).abs()
    worst = both.loc[away.idxmax()]
    evidence = (
        f"{int((away == 0).sum())} of {len(both)} rows equal; farthest: {worst['ratio']:.6g} ({worst['tensor']} of"
        f" {worst['variant']}, {worst['dtype']}, {worst['world_size']} ranks)"
    )
    return Claim(statement, bool((away[~summed] == 0).all() and (away[summed] < ORDER).all()), evidence)


def _pairs(rows: pd.DataFrame) -> Claim:
    statement = "a2a+p2p at 4 ranks has the error of p2p at 2, all ranks together."
    of = rows[rows["rank"] == ALL_RANKS].set_index(["dtype", "seed", "tensor"])
    grid = of.loc[(of["variant"] == "transformer_engine_a2a_p2p") & (of["world_size"] == 4), "error_rel"]
    ring = of.loc[(of["variant"] == "transformer_engine_p2p") & (of["world_size"] == 2), "error_rel"]
    if grid.empty or ring.empty:
        return Claim(statement, None, "not measured")
    away = float((grid / ring - 1).abs().max())
    return Claim(statement, away < 1e-9, f"farthest: {away:.2g}")  # sums over ranks are added in another order


def _cost(rows: pd.DataFrame) -> list[Claim]:
    ring = rows[(rows["variant"] == "te_p2p") & (rows["world_size"] == 2) & (rows["rank"] == ALL_RANKS)]
    found = []
    for column, bound, what in (("seconds", LONGER, "time"), ("peak_bytes", LARGER, "memory")):
        statement = f"Float32 accumulators and wires take te_p2p at 2 ranks at most {bound:g} times the {what}."
        each = ring.groupby(["dtype", "precision"])[column].min().unstack()
        if not {"", FLOAT32} <= {*each.columns}:
            found.append(Claim(statement, None, "not measured"))
            continue
        ratio = each[FLOAT32] / each[""]
        said = ", ".join(f"{dtype} {value:.2f}" for dtype, value in ratio.items())
        found.append(Claim(statement, bool((ratio <= bound).all()), said))
    return found


def _worst_rank(rows: pd.DataFrame) -> Claim:
    said = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in RANGES.items())
    statement = f"p2p at 2 ranks on the worst rank, times single device: {said}."
    mine = rows[(rows["variant"] == "transformer_engine_p2p") & (rows["world_size"] == 2) & (rows["rank"] >= 0)]
    worst = mine.groupby(["tensor", "dtype", "seed"])["x_single_device"].max().groupby(["tensor", "dtype"]).mean()
    if worst.empty:
        return Claim(statement, None, "not measured")
    holds = all(worst[name].between(*RANGES[name]).all() for name in RANGES)
    evidence = ", ".join(f"{name} {worst[name].min():.2f} to {worst[name].max():.2f}" for name in RANGES)
    return Claim(statement, bool(holds), evidence)


def _within(statement: str, whole: pd.DataFrame, way: str, tensors: tuple[str, ...], bound: float) -> Claim:
    mine = whole[(whole["variant"] == f"transformer_engine_{way}") & whole["tensor"].isin(tensors)]
    if mine.empty:
        return Claim(statement, None, "not measured")
    away = float((mine["x_single_device"] - 1).abs().max())
    return Claim(statement, away <= bound, f"farthest: {away:.2g}")
