"""What trained_attention claims about a ring on attention that trains, checked against its table."""

import pandas as pd

from accuracy.core.path_text import pairs_of
from accuracy.results.claim import Claim

TENSORS = ("out", "dq", "dk", "dv")
LEAST = 1.05  # times: what counts as growth


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = _rows(results)
    ring, te = (rows[rows["variant"] == name] for name in ("ring", "te_p2p"))
    out = te[te["tensor"] == "out"]
    return [
        _between("A ring stays between 1.0 and 1.5 times single device's error.", ring, 1.0, 1.5),
        _grows("A ring's ratio of out is at step 300 at least 1.05 times that of step 0.", ring, "out", LEAST),
        _between("te_p2p has at least 2 times single device's error in out.", out, 2.0, float("inf")),
        _first(ring[ring["tensor"] == "dq"]),
    ]


def answer(results: pd.DataFrame) -> list[Claim]:
    """What the Answer is made of."""
    rows = _rows(results)
    ring, te = (rows[rows["variant"] == name] for name in ("ring", "te_p2p"))
    return [
        _at("At 16 ranks TransformerEngine's p2p has 2.0 times single device's error of out at step 0", te, 0, 2.0),
        _at("and 3.3 times at step 300", te, 300, 3.3),
        _at("a ring 1.08 times at step 0", ring, 0, 1.08),
        _at("and 1.32 times at step 300", ring, 300, 1.32),
    ]


def _rows(results: pd.DataFrame) -> pd.DataFrame:
    rows = results[(results["rank"] == -1) & results["error_rel"].notna() & results["tensor"].isin(TENSORS)]
    layers = rows["inputs_options"].map(pairs_of).str["layer"]
    return rows.assign(step=pd.to_numeric(layers.str.partition("@")[2]))


def _between(statement: str, rows: pd.DataFrame, least: float, most: float) -> Claim:
    if rows.empty:
        return Claim(statement, None, "not measured")
    low, high = rows["x_single_device"].min(), rows["x_single_device"].max()
    return Claim(statement, bool(least <= low and high <= most), f"{low:.2f} to {high:.2f} times")


def _grows(statement: str, rows: pd.DataFrame, tensor: str, least: float) -> Claim:
    ratio = rows[rows["tensor"] == tensor].sort_values("step")["x_single_device"]
    if len(ratio) < 2:
        return Claim(statement, None, "not measured")
    return Claim(statement, bool(ratio.iloc[-1] >= least * ratio.iloc[0]), f"{ratio.iloc[0]:.2f}, {ratio.iloc[-1]:.2f}")


def _first(rows: pd.DataFrame) -> Claim:
    statement = "Single device's error of dq over its rounding floor is largest at step 0."
    if rows.empty:
        return Claim(statement, None, "not measured")
    floor = (rows["single_device_rel"] / rows["floor_rel"]).groupby(rows["step"]).mean()
    said = ", ".join(f"step {step}: {x:.2f}" for step, x in floor.items())
    return Claim(statement, bool(floor.idxmax() == 0), said)


def _at(statement: str, rows: pd.DataFrame, step: int, given: float) -> Claim:
    """To the digits that are given."""
    found = rows[(rows["tensor"] == "out") & (rows["step"] == step)]["x_single_device"]
    if found.empty:
        return Claim(statement, None, "not measured")
    digits = len(str(given).partition(".")[2])
    return Claim(statement, bool(round(float(found.iloc[0]), digits) == given), f"{found.iloc[0]:.3f}")
