"""How wide is a 95% interval from few points? Student's t distribution, without scipy."""

from typing import Any

import numpy as np

_LARGEST_QUANTILE = 1e9


def within(t: Any, freedom: int) -> Any:
    """P(|T| <= t) for an integer number of degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4).

    t: a number or an array, infinity allowed. Good to 1e-15, absolutely.
    """
    theta = np.arctan(np.asarray(t) / np.sqrt(freedom))
    cosine, sine = np.cos(theta), np.sin(theta)
    if freedom == 1:
        return 2 * theta / np.pi
    odd = freedom % 2 == 1
    term = total = cosine if odd else np.ones_like(theta)
    for k in range(2 if odd else 1, freedom - 1, 2):
        term = term * cosine**2 * k / (k + 1)
        total = total + term
    return 2 / np.pi * (theta + sine * total) if odd else sine * total


def quantile(freedom: int, level: float = 0.95) -> float:
    """The t with P(|T| <= t) = level: half the width of a two-sided interval, in standard errors."""
    if freedom < 1:
        raise ValueError(f"freedom {freedom}: a t interval needs at least 1 degree of freedom; give more points")
    low, high = 0.0, 1.0
    while within(high, freedom) < level and high < _LARGEST_QUANTILE:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < level else (low, middle)
    return (low + high) / 2
