"""What trained_attention predicts of a ring on a model that trains, checked against the table of its script.

A replay by `accuracy experiment=trained_attention` has another table, of which nothing is claimed."""

import pandas as pd

from accuracy.results.claim import Claim, largest_below, smallest_above

RING, TE, GATHERED = ("ring", "zigzag"), "te_p2p", "llama3"
SUMS = ("dk", "dv")
KEYS = ["what", "variant", "world_size", "tensor"]


def claims(results: pd.DataFrame) -> list[Claim]:
    if "x_worst_rank" not in results:
        return []
    loss = results[results["inputs"] == "trained"].drop_duplicates(["seed", "step"])
    last = loss[loss["step"] == loss["step"].max()].assign(tensor="loss", variant="the model", dtype="bfloat16")
    means, each = averaged(results), with_ratios(results)
    ring, te, gathered = (means[means["variant"].isin(names)] for names in (RING, (TE,), (GATHERED,)))
    alone = each[each["variant"] == "ring"].assign(floor=each["single_device_rel"] / each["floor_rel"])
    exact = gathered[~gathered["tensor"].isin(SUMS)]
    return [
        largest_below("The loss after training is below 1.5 nats a byte.", last, 1.5, "loss"),
        _times("te_p2p's out on the worst rank: after training at least 1.2 times that on Gaussian inputs.",
               te, "out", "x_worst_rank", "trained, last", "Gaussian", 1.2),
        _times("A ring's out over all ranks: after training at least 1.05 times that before.",
               ring[ring["variant"] == "ring"], "out", "x", "trained, last", "trained, first", 1.05),
        largest_below("ring and zigzag stay below 1.6 times single device on the worst rank.",
                      ring, 1.6, "x_worst_rank", _where),
        largest_below("llama3's out and dq are single device's, to 5%.",
                      exact.assign(away=(exact["x"] - 1).abs()), 0.05, "away", _where),
        *(_times(f"llama3's {tensor} on the worst rank: less after training than on Gaussian inputs.",
                 gathered, tensor, "x_worst_rank", "Gaussian", "trained, last", 1.0) for tensor in SUMS),
        largest_below("ring and zigzag: the worst row of out has less than twice the error of single device's worst.",
                      ring[ring["tensor"] == "out"], 2.0, "x_row", _where),
        smallest_above("te_p2p: the worst row of out has at least twice the error of single device's worst.",
                       te[te["tensor"] == "out"], 2.0, "x_row", _where),
        _between("A sink: a ring's out over all ranks has 1.15 to 1.5 times single device's error.", ring, "sink"),
        _near("Heavy channels alone: a ring's out is that on Gaussian inputs, to 5%.", ring),
        largest_below("Single device's out has at most 2.5 rounding floors.",
                      alone[alone["tensor"] == "out"], 2.5, "floor", _where),
        _above("Single device's dq has more than 3 rounding floors in some layer that was captured.", alone),
    ]  # fmt: skip


def with_ratios(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of the most ranks, with `what`: the inputs, of trained ones when; x: all ranks, over single device's;
    x_row, x_999: the error of the worst row, and of the row that 99.9% are better than, over single device's; x_floor:
    all ranks."""
    rows = results[(results["variant"].fillna("") != "") & (results["world_size"] == results["world_size"].max())]
    first, last = rows.loc[rows["step"] >= 0, "step"].min(), rows["step"].max()
    when = rows["step"].map(lambda step: {first: ", first", last: ", last"}.get(step, "" if step < 0 else f", {step}"))
    return rows.assign(
        what=rows["inputs"] + when, x=rows["error_rel"] / rows["single_device_rel"],
        x_row=rows["row_worst"] / rows["single_device_row_worst"], x_floor=rows["error_rel"] / rows["floor_rel"],
        x_999=rows["row_999"] / rows["single_device_row_999"],
    )  # fmt: skip


def by_seed(results: pd.DataFrame) -> pd.DataFrame:
    """The mean over layers: indexed by KEYS and the seed."""
    rows = with_ratios(results)
    return rows.groupby([*KEYS, "seed"])[
        ["x", "x_worst_rank", "x_row", "x_999", "x_floor", "row_worst", "row_999"]
    ].mean()


def averaged(results: pd.DataFrame) -> pd.DataFrame:
    """The mean over layers and seeds: KEYS and the ratios."""
    return by_seed(results).groupby(KEYS).mean().reset_index()


def _where(row: pd.Series) -> str:
    return f"{row['tensor']} of {row['variant']}, {row['what']}"


def _of(rows: pd.DataFrame, tensor: str, column: str) -> "pd.Series[float]":
    return rows[rows["tensor"] == tensor].set_index("what")[column]


def _times(
    statement: str, rows: pd.DataFrame, tensor: str, column: str, above: str, below: str, least: float
) -> Claim:  # fmt: skip
    found = _of(rows, tensor, column)
    if not {above, below} <= {*found.index}:
        return Claim(statement, None, "not measured")
    holds = bool(found[above] >= least * found[below])
    return Claim(statement, holds, f"{above} {found[above]:.2f}, {below} {found[below]:.2f}")


def _between(statement: str, ring: pd.DataFrame, what: str) -> Claim:
    found = _of(ring[ring["variant"] == "ring"], "out", "x")
    if what not in found:
        return Claim(statement, None, "not measured")
    return Claim(statement, bool(1.15 <= found[what] <= 1.5), f"{found[what]:.2f}")


def _near(statement: str, ring: pd.DataFrame) -> Claim:
    found = _of(ring[ring["variant"] == "ring"], "out", "x")
    if not {"heavy channels", "Gaussian"} <= {*found.index}:
        return Claim(statement, None, "not measured")
    apart = found["heavy channels"] / found["Gaussian"] - 1
    return Claim(statement, bool(abs(apart) < 0.05), f"{apart:+.1%}")


def _above(statement: str, alone: pd.DataFrame) -> Claim:
    rows = alone[(alone["tensor"] == "dq") & alone["what"].str.startswith("trained")]
    if rows.empty:
        return Claim(statement, None, "not measured")
    worst = rows.loc[rows["floor"].idxmax()]
    return Claim(statement, bool(worst["floor"] > 3), f"{worst['floor']:.1f}, {worst['what']}, layer {worst['layer']}")
