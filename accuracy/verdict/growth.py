"""How does the error grow with the world size? A power law error ~ W^p fitted on logarithms.

In: (world size, error) points over all seeds. Out: the exponent p with its 95% interval, or the reason why
there is none. p = 0: flat. p = 0.5: independent roundings adding up like a random walk. p = 1: bias, every
step adds the same.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from accuracy.core.number import count, signed
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.evidence import INDEPENDENT

SMALLEST_WORLD_SIZE = 2  # W = 1 has no merge: it is single-device attention
FEWEST_WORLD_SIZES = 3
FLAT = 0.1  # over W = 2..64 an exponent of 0.1 is a factor of 1.41
RANDOM_WALK = (0.35, 0.75)


@dataclass(frozen=True)
class Growth:
    """error ~ W^exponent, low <= exponent <= high with 95% confidence."""

    exponent: float
    low: float
    high: float
    points: int

    @property
    def text(self) -> str:
        """`W^0.03 [0.01, 0.05]`."""
        return f"W^{signed(self.exponent)} [{signed(self.low)}, {signed(self.high)}]"

    @property
    def word(self) -> str:
        """What the interval allows to say: flat, falling, slow growth, random walk, bias, or unclear."""
        if self.low >= -FLAT and self.high <= FLAT:
            return "flat"
        if self.high < 0:
            return "falling"
        if self.low <= 0:
            return "unclear"
        if self.exponent < RANDOM_WALK[0]:
            return "slow growth"
        return "random walk" if self.exponent <= RANDOM_WALK[1] else "bias"


def fit_growth(points: Iterable[tuple[float, float]]) -> Growth | str:
    """Ordinary least squares of log(error) on log(W) for W >= 2; the reason instead where it cannot be
    fitted.

    The interval is exponent +- t * s / sqrt(sum (x - mean x)^2), t for n - 2 degrees of freedom: the
    textbook interval of a slope (Draper & Smith, Applied Regression Analysis, section 1.4).
    """
    usable = [
        (math.log(size), math.log(error))
        for size, error in points
        if size >= SMALLEST_WORLD_SIZE and math.isfinite(error) and error > 0
    ]
    sizes = {x for x, _ in usable}
    if len(sizes) < FEWEST_WORLD_SIZES:
        return (
            f"not fitted: {count(len(sizes), 'world size')} of 2 or more with a positive finite error, "
            f"{FEWEST_WORLD_SIZES} are needed"
        )
    x, y = np.array(usable).T
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    half = stdtrit(len(usable) - 2, 0.975) * math.sqrt(covariance[0, 0])
    return Growth(float(slope), float(slope - half), float(slope + half), len(usable))


def trend(errors: pd.Series) -> str:
    """Return growing, or falling, where every error of at least three is above, or below, the one before it."""
    steps = np.diff(errors.to_numpy()) if len(errors) > 2 and np.isfinite(errors).all() else np.zeros(1)
    return "growing" if (steps > 0).all() else "falling" if (steps < 0).all() else ""


def growths(rows: pd.DataFrame, tensors: tuple[str, ...], dtype: str) -> dict[str, Growth]:
    """The growth of each tensor that has one, on Gaussian inputs."""
    rows = rows[(rows["rank"] == ALL_RANKS) & (rows["dtype"] == dtype) & (rows["inputs"] == INDEPENDENT)]
    of_tensor = {name: rows[rows["tensor"] == name] for name in tensors}
    fits = {name: fit_growth(zip(x["world_size"], x["error_rel"], strict=True)) for name, x in of_tensor.items()}
    return {name: fit for name, fit in fits.items() if isinstance(fit, Growth)}


def ratios(rows: pd.DataFrame, dtype: str, size: int) -> tuple[float, ...]:
    """Errors of dq, dk and dv over the least of them, which tell one cause from another; none where one is missing."""
    rows = rows[(rows["rank"] == ALL_RANKS) & (rows["dtype"] == dtype) & (rows["world_size"] == size)]
    gaussian = rows["inputs"] == INDEPENDENT
    errors = (rows[gaussian] if gaussian.any() else rows).groupby("tensor")["error_rel"].mean()
    found = [float(errors.get(name, 0.0)) for name in ("dq", "dk", "dv")]
    return tuple(each / min(found) for each in found) if all(0 < each < float("inf") for each in found) else ()
