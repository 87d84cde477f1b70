"""What the regression matrix claims of itself: it is whole, it keeps the portable rules, it is sharp."""

import numpy as np
import pandas as pd

from accuracy.gate.judge import MEASURES
from accuracy.gate.rules import Limits
from accuracy.gate.statistics import LEVEL, RISE, seen
from experiments.claim import Claim, no_failure, place_of

CELLS, SEEDS = 500, 8  # for which experiments/gate_power holds the formula against simulation and reruns


def claims(results: pd.DataFrame) -> list[Claim]:
    whole = results[(results["rank"] == -1) & results["tensor"].notna() & (results["variant"] != "single_device")]
    return [no_failure(results), _within(whole), _sharp(whole)]


def _within(whole: pd.DataFrame) -> Claim:
    statement = "Up to eight ranks no schedule breaks a portable rule: 1.5 times single device, lse 10 times."
    if whole.empty:
        return Claim(statement, None, "not measured")
    limits = whole["tensor"].map(lambda tensor: Limits().of(tensor, whole=True))
    part = whole["x_single_device"] / limits
    worst = whole.loc[part.idxmax()]
    return Claim(statement, bool(part.max() <= 1), f"nearest: {worst['x_single_device']:.2f} ({place_of(worst)})")


def _sharp(whole: pd.DataFrame) -> Claim:
    """By the formula of the gate."""
    statement = "With this as the baseline, 8 seeds show a rise of any cell by 10% with probability 0.99."
    keys = ["variant", "precision", "dtype", "world_size", "tensor", "seqlen"]
    groups = whole.assign(y=np.log(whole["x_single_device"])).groupby(keys, dropna=False)["y"]
    spread, seeds = groups.std(), int(groups.size().min()) if len(groups) else 0
    if seeds < 2:
        return Claim(statement, None, "one seed")
    level = LEVEL / (max(CELLS, len(spread)) * len(MEASURES)) / 2
    least = seen(spread * np.sqrt(1 / SEEDS + 1 / seeds), SEEDS + seeds - 2, level)
    evidence = (
        f"in the noisiest cell a rise of {np.expm1(least.max()):.1%}, in the median {np.expm1(np.median(least)):.1%};"
        f" {seeds} seeds, spreads of {spread.median():.2%} in the median, {spread.max():.2%} at most"
    )
    return Claim(statement, bool(least.max() <= RISE), evidence)
