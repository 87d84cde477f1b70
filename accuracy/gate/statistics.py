"""Is a cell's error larger than the baseline's? Student's t on y = ln(error / denominator), seeds as the unit. In: y of
the new run (..., m) and of the baseline (..., n), any leading axes: cells, or simulated runs of cells."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.special import stdtr, stdtrit

from accuracy.results.policy import TAIL

Array = np.ndarray


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
    freedom: int
    seed_effect: Array
    seed_rise: Array

    def at(self, place: int) -> "Comparison":
        """Of one cell of those along the only axis."""
        values = {name: value[place] for name, value in vars(self).items() if name != "freedom"}
        return Comparison(**values, freedom=self.freedom)


def compare(new: Array, old: Array, twins: Array | None = None, tail: Array | float = TAIL) -> Comparison:
    """Difference of the means, with the spread pooled over both runs (Student 1908; equal variances). twins: the
    baseline's y at the very seeds of new, two at least, hence of the same inputs: (..., m); None where it lacks one.
    With twins there are two tests, and the better one counts with its p-value doubled (Bonferroni): differences seed by
    seed see through the luck of the inputs, and the spread pooled over both runs, of many more degrees of freedom, sees
    more where rounding is all there is. What two runs of a seed share only makes the pooled test more careful.
    tail: most degrees of freedom of a single seed, see `tail.py`."""
    m, n = new.shape[-1], old.shape[-1]
    freedom = m + n - 2
    squares = sum(((y - y.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for y in (new, old))
    variance = squares / freedom if freedom > 0 else squares * np.nan
    effect, error = new.mean(axis=-1) - old.mean(axis=-1), np.sqrt(variance * (1 / m + 1 / n))
    rise, fall = _tails(effect, error, freedom)
    if twins is not None:
        difference = new - twins
        effect = difference.mean(axis=-1)
        by_seed = _tails(effect, difference.std(axis=-1, ddof=1) / np.sqrt(m), m - 1)
        rise, fall = (np.minimum(1.0, 2 * np.fmin(*pair)) for pair in zip((rise, fall), by_seed, strict=True))
    return Comparison(effect, rise, fall, error, freedom, *_single_seed(new, old, tail))


def seen(error: Array, freedom: int, level: float) -> Array:
    """The rise that a t test at `level` catches with a chance of 0.99: of its logarithm, as `error` is. By the mean and
    variance of the non-central t (Johnson & Welch 1940): the quantile c of the level is reached by a rise of c (1 - 1 /
    4f) + z sqrt(1 + c^2 / 2f) standard errors, z the normal quantile of the chance."""
    if freedom < 1:
        return np.full(np.shape(error), np.inf)
    c, z = stdtrit(freedom, 1 - level), NormalDist().inv_cdf(0.99)
    return error * (c * (1 - 1 / (4 * freedom)) + z * math.sqrt(1 + c**2 / (2 * freedom)))


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
    rise, _ = _tails(excess, error, np.minimum(n - 1, tail))
    return excess, np.minimum(1.0, rise * new.shape[-1])


def _tails(effect: Array, error: Array, freedom: Array | int) -> tuple[Array, Array]:
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
