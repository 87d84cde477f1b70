"""How heavy is the tail of noise over seeds? A single seed far from the others is an outlier only where they are not.

In: y of the baseline (..., cells, seeds). Out: degrees of freedom of Student's t, TAIL or the next of HEAVIER whose
kurtosis is no smaller than the cells' mean. A baseline of a few seeds has as few degrees already.
"""

from functools import cache

import numpy as np

from accuracy.results.policy import HEAVIER, TAIL

Array = np.ndarray
DRAWS = 4000  # of the expected kurtosis: known to 0.05 then


def tail(old: Array) -> Array:
    """Degrees of freedom, of every run of cells: (...,). One standard error is left to chance, so that of a few cells
    of normal noise hardly any lose their power."""
    n = old.shape[-1]
    if n <= TAIL:
        return np.full(old.shape[:-2], float(TAIL))
    kurtosis = _kurtosis(old)
    known = np.maximum(np.isfinite(kurtosis).sum(axis=-1), 1)
    mean = np.nansum(kurtosis, axis=-1) / known
    spread = np.sqrt(np.nansum((kurtosis - mean[..., None]) ** 2, axis=-1) / known)
    least = np.where(np.isfinite(kurtosis).any(axis=-1), mean - spread / np.sqrt(known), -np.inf)
    heavier = least[..., None] > np.array(_expected(n))
    return np.array([TAIL, *HEAVIER], float)[heavier.sum(axis=-1)]


def _kurtosis(y: Array) -> Array:
    """Excess kurtosis of each cell's seeds (biased, as `_expected` is); NaN without a spread."""
    squares = (y - y.mean(axis=-1, keepdims=True)) ** 2
    variance = squares.mean(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0, (squares**2).mean(axis=-1) / variance**2 - 3, np.nan)


@cache
def _expected(n: int) -> tuple[float, ...]:
    """Mean of the excess kurtosis of n seeds, for t of TAIL degrees and of all but the last of HEAVIER: rising."""
    random = np.random.default_rng(0)
    return tuple(float(_kurtosis(random.standard_t(each, (DRAWS, n))).mean()) for each in (TAIL, *HEAVIER[:-1]))
