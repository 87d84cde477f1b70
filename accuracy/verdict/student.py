"""How wide is a 95% interval from few points? Quantiles of Student's t distribution, without scipy."""

import math

_LARGEST_QUANTILE = 1e9


def within(t: float, freedom: int) -> float:
    """P(|T| <= t) for an integer number of degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    theta = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = freedom % 2 == 1
    term, total = (cosine, cosine) if odd else (1.0, 1.0)
    if freedom == 1:
        return 2 * theta / math.pi
    for k in range(2 if odd else 1, freedom - 1, 2):
        term *= cosine**2 * k / (k + 1)
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total


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
