"""Is a cell's error larger than the baseline's? Student's t on y = ln(error / denominator), seeds as the unit. In: y of
the new run (..., m) and of the baseline (..., n), any leading axes: cells, or simulated runs of cells.

The levels were decided before any run was looked at. False alarms are shared out in advance: a run has two tests (the
mean over the seeds, the worst single seed) and at most two looks, so each of the four has a quarter of FALSE_ALARMS.
Holm's procedure holds the quarter over all measures of all cells, however they depend on each other: an unchanged run
fails with probability at most FALSE_ALARMS, where the measures are normal. `accuracy experiment=gate_power` measures
that, and how surely a rise of 10% is caught.
"""

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from scipy.special import stdtr, stdtrit

Array = np.ndarray
RISE = math.log(1.10)  # what must be caught
FALSE_ALARMS = 1e-3  # of a whole run of unchanged cells
LEVEL = FALSE_ALARMS / 4  # two tests, two looks

# A cell that rose and that LEVEL does not settle gets a second look if it would fail at this level over all cells:
# about one unchanged run in twenty is looked at twice at the most, and then by fresh seeds.
NEAR = 0.05

# A single seed is judged as if noise over seeds had the tail of Student's t of so many degrees, of excess kurtosis 2:
# three times the most that experiments/gate_power measured in a cell (0.7). Against 24 seeds normal noise is then
# hardly ever called an outlier wrongly. Where the baseline's own seeds, of all cells together, have heavier tails, the
# degrees are the next of HEAVIER that explain them (`tail`).
TAIL = 7
HEAVIER = (5, 4, 3, 2)
DRAWS = 4000  # of the expected kurtosis: known to 0.05 then

DEPENDENT = 1e-3  # seeds whose order would be as good by chance so rarely are said to depend on each other
PERMUTATIONS = 4000


@dataclass(frozen=True)
class Comparison:
    """Arrays over cells. rise, fall: one-sided p-values of the mean; NaN where there are too few seeds for one. effect:
    difference of the means, 0.0953 is 10% more. error, freedom: standard error of the difference with the spread pooled
    over both runs, and its degrees of freedom. seed_effect, seed_rise: of the single seed that stands out most from the
    baseline's, its p-value multiplied by the number of seeds it was picked from (Bonferroni)."""

    effect: Array
    rise: Array
    fall: Array
    error: Array
    freedom: Array | float
    seed_effect: Array
    seed_rise: Array


def compare(new: Array, old: Array, twins: Array | None = None, tail: Array | float = TAIL) -> Comparison:
    """Difference of the means, with the spread pooled over both runs (Student 1908; equal variances). twins: the
    baseline's y at the very seeds of new, two at least, hence of the same inputs: (..., m); None where it lacks one.
    With twins there are two tests, and the better one counts with its p-value doubled (Bonferroni): differences seed by
    seed see through the luck of the inputs, and the spread pooled over both runs, of many more degrees of freedom, sees
    more where rounding is all there is. What two runs of a seed share only makes the pooled test more careful.
    tail: most degrees of freedom of a single seed."""
    m, n = new.shape[-1], old.shape[-1]
    freedom = m + n - 2
    squares = sum(((y - y.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for y in (new, old))
    variance = squares / freedom if freedom > 0 else squares * np.nan
    effect, error = new.mean(axis=-1) - old.mean(axis=-1), np.sqrt(variance * (1 / m + 1 / n))
    rise, fall = _p_values(effect, error, freedom)
    if twins is not None:
        difference = new - twins
        effect = difference.mean(axis=-1)
        by_seed = _p_values(effect, difference.std(axis=-1, ddof=1) / np.sqrt(m), m - 1)
        rise, fall = (np.minimum(1.0, 2 * np.fmin(*pair)) for pair in zip((rise, fall), by_seed, strict=True))
    return Comparison(effect, rise, fall, error, freedom, *_single_seed(new, old, tail))


def seen(error: Array, freedom: Array | float, level: Array | float) -> Array:
    """The rise that a t test at `level` catches with a chance of 0.99: of its logarithm, as `error` is. By the mean and
    variance of the non-central t (Johnson & Welch 1940): the quantile c of the level is reached by a rise of c (1 - 1 /
    4f) + z sqrt(1 + c^2 / 2f) standard errors, z the normal quantile of the chance."""
    f = np.maximum(freedom, 1)
    c, z = stdtrit(f, 1 - level), NormalDist().inv_cdf(0.99)
    return np.where(freedom < 1, np.inf, error * (c * (1 - 1 / (4 * f)) + z * np.sqrt(1 + c**2 / (2 * f))))


def _single_seed(new: Array, old: Array, tail: Array | float) -> tuple[Array, Array]:
    """The new seed furthest above the baseline's, by the one-sided tolerance factor k = t sqrt(1 + 1/n). The factor is
    the one of expected content (Guttman 1970): beyond mean + k s lies a seed of the baseline's own kind with the
    probability of the level. With the customary 99% content, 1% of 500 cells of 8 seeds is 40 seeds a run. t has n - 1
    degrees and never more than `tail`, however many seeds the baseline has: no mean tames one seed's tail."""
    n = old.shape[-1]
    excess = new.max(axis=-1) - old.mean(axis=-1)
    if n < 2:
        return excess, np.full(excess.shape, np.nan)
    error = old.std(axis=-1, ddof=1) * np.sqrt(1 + 1 / n)
    rise, _ = _p_values(excess, error, np.minimum(n - 1, tail))
    return excess, np.minimum(1.0, rise * new.shape[-1])


def _p_values(effect: Array, error: Array, freedom: Array | int) -> tuple[Array, Array]:
    """P(T >= t) and P(T <= t); without any spread a difference is certain, and none is no difference."""
    if np.any(freedom < 1):
        return np.full(np.shape(effect), np.nan), np.full(np.shape(effect), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(effect == 0, 0.0, effect / error)
    return stdtr(freedom, -t), stdtr(freedom, t)


def holm(p: Array, level: float, family: int | None = None) -> Array:
    """Which hypotheses of the last axis fall at a family-wise level (Holm 1979); family: how many there are in all.
    Holds under any dependence between cells. NaN never falls."""
    number = p.shape[-1] if family is None else family
    order = np.argsort(p, axis=-1)  # NaN last
    allowed = level / np.maximum(number - np.arange(p.shape[-1]), 1)
    falls = np.logical_and.accumulate(np.take_along_axis(p, order, -1) <= allowed, axis=-1)
    back = np.empty_like(falls)
    np.put_along_axis(back, order, falls, -1)
    return back


def tail(old: Array) -> Array:
    """How heavy is the tail of noise over the baseline's seeds? Degrees of freedom of Student's t, of every run of
    cells (..., cells, seeds): TAIL, or the next of HEAVIER whose kurtosis is no smaller than the cells' mean. A single
    seed far from the others is an outlier only where they are not. One standard error is left to chance, so that of a
    few cells of normal noise hardly any lose their power."""
    n = old.shape[-1]
    if n <= TAIL:  # as few degrees already
        return np.full(old.shape[:-2], float(TAIL))
    kurtosis = _kurtosis(old)
    known = np.maximum(np.isfinite(kurtosis).sum(axis=-1), 1)
    mean = np.nansum(kurtosis, axis=-1) / known
    spread = np.sqrt(np.nansum((kurtosis - mean[..., None]) ** 2, axis=-1) / known)
    least = np.where(np.isfinite(kurtosis).any(axis=-1), mean - spread / np.sqrt(known), -np.inf)
    heavier = least[..., None] > np.array(_expected_kurtosis(n))
    return np.array([TAIL, *HEAVIER], float)[heavier.sum(axis=-1)]


def _kurtosis(y: Array) -> Array:
    """Excess kurtosis of each cell's seeds (biased, as the expected one is); NaN without a spread."""
    squares = (y - y.mean(axis=-1, keepdims=True)) ** 2
    variance = squares.mean(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0, (squares**2).mean(axis=-1) / variance**2 - 3, np.nan)


@cache
def _expected_kurtosis(n: int) -> tuple[float, ...]:
    """Mean of the excess kurtosis of n seeds, for t of TAIL degrees and of all but the last of HEAVIER: rising."""
    random = np.random.default_rng(0)
    return tuple(float(_kurtosis(random.standard_t(each, (DRAWS, n))).mean()) for each in (TAIL, *HEAVIER[:-1]))


def dependence(y: Array) -> float:
    """p-value of the seeds' order, y (cells, seeds): how often seeds in random order have neighbours as alike as these,
    by the products of neighbours summed over all cells. A permutation test (Fisher 1935): it is exact whatever the
    noise is, and however cells depend on each other, as all cells keep the same order."""
    centred = y - y.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    alike = np.divide(centred, spread, where=spread > 0, out=np.zeros_like(centred))
    products = alike.T @ alike
    random = np.random.default_rng(0)
    seeds = np.arange(len(products))
    orders = np.array([seeds, *(random.permutation(seeds) for _ in range(PERMUTATIONS - 1))])
    sums = products[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    return float((sums >= sums[0] - 1e-9 * abs(sums[0])).mean())
