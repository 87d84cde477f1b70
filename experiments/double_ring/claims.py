"""What double_ring claims about rings of two dimensions, checked against its table."""

import pandas as pd

from accuracy.results.claim import Claim

GRADIENTS = ("dq", "dk", "dv")
KEYS = ["world_size", "tensor"]


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] >= 0) & (results["world_size"] > 1) & (results["status"] == "ok")]
    worst = rows.groupby(["variant", "options", "seed", *KEYS])["x_single_device"].max()
    means = worst.groupby(["variant", "options", *KEYS]).mean().reset_index()
    rings, zigzag = means[means["variant"] == "double_ring"], _by(means[means["variant"] == "zigzag"])
    rounded = rings[rings["options"].str.contains("window_sums=input", regex=False)]
    kept = rings[rings["options"].str.contains("window_sums=accumulate", regex=False)]
    beyond = rounded[rounded["world_size"] > rounded["options"].map(_number)]
    return [
        _near("out and lse of the double ring are within 5% of zigzag's.", rings, zigzag, ("out", "lse")),
        _largest(beyond),
        _like_a_root(beyond),
        _near("With float32 sums its dq, dk and dv are within 5% of zigzag's.", kept, zigzag, GRADIENTS),
        _near(
            "usp is within 5% of a zigzag ring of world_size / ulysses_ranks ranks.",
            _shorter(means[means["variant"] == "usp"]), zigzag, ("out", "lse", *GRADIENTS),
        ),
    ]  # fmt: skip


def _number(options: str) -> int:
    """Of `window_ranks=8,...` or `ulysses_ranks=8,...`."""
    return int(next(word for word in options.split(",") if "_ranks=" in word).rpartition("=")[2])


def _by(rows: pd.DataFrame) -> "pd.Series[float]":
    return rows.set_index(KEYS)["x_single_device"]


def _shorter(rows: pd.DataFrame) -> pd.DataFrame:
    """Under the world size of the ring inside."""
    return rows.assign(world_size=rows["world_size"] // rows["options"].map(_number))


def _near(statement: str, rows: pd.DataFrame, other: "pd.Series[float]", tensors: tuple[str, ...]) -> Claim:
    rows = rows[rows["tensor"].isin(tensors)].join(other.rename("other"), on=KEYS).dropna(subset="other")
    if rows.empty:
        return Claim(statement, None, "not measured")
    ratio = rows["x_single_device"] / rows["other"]
    return Claim(statement, bool(ratio.between(0.95, 1.05).all()), f"ratios {ratio.min():.3f} to {ratio.max():.3f}")


def _largest(rows: pd.DataFrame) -> Claim:
    statement = "With sums in 16 bits dq, dk and dv are 2.5 to 7 times single device on the worst of 64 ranks."
    rows = rows[rows["tensor"].isin(GRADIENTS) & (rows["world_size"] == 64)]
    if rows.empty:
        return Claim(statement, None, "64 ranks were not measured")
    size = rows["x_single_device"]
    return Claim(statement, bool(size.between(2.5, 7).all()), f"{size.min():.2f} to {size.max():.2f}")


def _like_a_root(rows: pd.DataFrame) -> Claim:
    statement = "They grow like a square root: at 64 ranks 1.2 to 1.6 times those at 32."
    sizes = rows[rows["tensor"].isin(GRADIENTS)].set_index(["options", *KEYS])["x_single_device"].unstack("world_size")
    if not {32, 64} <= set(sizes):
        return Claim(statement, None, "32 and 64 ranks were not measured")
    growth = (sizes[64] / sizes[32]).dropna()
    return Claim(statement, bool(growth.between(1.2, 1.6).all()), f"{growth.min():.2f} to {growth.max():.2f}")
