"""What split_kv claims about rounding and the number of parts, checked against its table."""

import numpy as np
import pandas as pd

from accuracy.results.claim import Claim

EXCESS = 1.5  # the portable rule of the gate: above it, more than rounding of blocks is at work
SAME = 0.05  # of one: 3 seeds of 1024 values of out scatter by 1 / sqrt(2 * 3072) = 1.3%, four times that
FLAT = 0.1  # exponent over the number of parts; 0.5 would be a random walk


def claims(results: pd.DataFrame) -> list[Claim]:
    rows = results[(results["rank"] == -1) & results["tensor"].notna() & (results["status"] == "ok")].copy()
    rows["splits"] = pd.to_numeric(rows["options"].str.extract(r"splits=(\d+)")[0])
    ours = rows[rows["variant"] == "split_kv"]
    unrounded = ours["precision"].str.contains("partial=accumulate")
    own = rows[(rows["variant"] == "flash_attn_split") & (rows["splits"] > 0)]
    return [
        _bounded(ours[~unrounded]),
        _flat(ours[~unrounded]),
        _free("Float32 partials cost out less than 5% at every number of parts.", ours[unrounded]),
        _free("flash-attn's own splitting costs out less than 5% at every number of parts.", own),
        _random_walk(ours),
    ]


def _out(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["tensor"] == "out"]


def _bounded(rows: pd.DataFrame) -> Claim:
    statement = (
        f"With partials in 16 bits out stays below {EXCESS} times single device's error at every number of parts."
    )
    rows = _out(rows)
    if rows.empty:
        return Claim(statement, None, "no such rows")
    worst = rows.loc[rows["x_single_device"].idxmax()]
    where = f"{worst['splits']:g} parts of {worst['seqlen']} keys, {worst['dtype']}"
    return Claim(
        statement,
        bool(worst["x_single_device"] < EXCESS),
        f"largest of {len(rows)}: {worst['x_single_device']:.3g} ({where})",
    )


def _flat(rows: pd.DataFrame) -> Claim:
    statement = f"From 2 parts on, out's error with partials in 16 bits grows at most like parts^{FLAT}."
    exponents = _exponents(_out(rows))
    if exponents.empty:
        return Claim(statement, None, "fewer than three numbers of parts")
    return Claim(
        statement, bool((exponents < FLAT).all()), f"exponents from {exponents.min():.3f} to {exponents.max():.3f}"
    )


def _free(statement: str, rows: pd.DataFrame) -> Claim:
    """Mean over seeds of the error over that of one part."""
    rows = _out(rows)
    keys = ["dtype", "seqlen", "heads_kv"]
    mean = rows.groupby([*keys, "splits"])["error_rel"].mean().unstack("splits")
    if mean.shape[1] < 2 or 1 not in mean:
        return Claim(statement, None, "no such rows")
    times = mean.div(mean[1], axis=0)
    return Claim(
        statement,
        bool((times < 1 + SAME).to_numpy().all()),
        f"{times.min().min():.3f} to {times.max().max():.3f} times one part's error",
    )


def _random_walk(rows: pd.DataFrame) -> Claim:
    statement = "lse's error over the number of parts grows no faster than a random walk (exponent at most 0.6)."
    exponents = _exponents(rows[rows["tensor"] == "lse"])
    if exponents.empty:
        return Claim(statement, None, "fewer than three numbers of parts")
    return Claim(
        statement, bool((exponents <= 0.6).all()), f"exponents from {exponents.min():.3f} to {exponents.max():.3f}"
    )


def _exponents(rows: pd.DataFrame) -> pd.Series:
    """Slope of log error over log parts, from 2 parts on, of every setting's mean over seeds."""
    several = rows[rows["splits"] >= 2]
    keys = ["dtype", "seqlen", "heads_kv", "precision"]
    mean = several.groupby([*keys, "splits"])["error_rel"].mean().unstack("splits")
    if mean.shape[1] < 3:
        return pd.Series(dtype=float)
    parts = np.log(mean.columns.to_numpy(dtype=float))
    return mean.apply(lambda row: float(np.polyfit(parts, np.log(row.to_numpy(dtype=float)), 1)[0]), axis=1)
