"""The tests of the gate against tables, against their definitions, and against planted changes."""

import math

import numpy as np
import pytest

from accuracy.gate.statistics import DEPENDENT, LEVEL, TAIL, compare, dependence, holm, seen, tail
from tests.unit.gate.simulation import CELLS, TESTS, alike, caught, failed, heavier


def test_both_tests_are_the_textbook_ones_and_the_better_counts_doubled() -> None:
    # Means 5 and 2, pooled variance 1, standard error sqrt(2/3): t = 3.6742 of 4 degrees.
    # For 4 degrees P(|T| <= t) = sin(1 + cos^2 / 2) with tan = t / 2: one-sided p = 0.010655.
    found = compare(np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    theta = math.atan(3 / math.sqrt(2 / 3) / 2)
    assert found.rise == pytest.approx((1 - math.sin(theta) * (1 + math.cos(theta) ** 2 / 2)) / 2, rel=1e-9)
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 3.4641 of 2 degrees, one-sided p = 0.03709.
    # The pooled test sees less: spreads of 2 and 1, t = 1.549 of 4 degrees.
    old = np.array([1.0, 2.0, 3.0])
    found = compare(np.array([2.0, 4.0, 6.0]), old, old)
    assert found.effect == pytest.approx(2.0)
    assert found.rise == pytest.approx(1 - 3.4641016 / math.sqrt(2 + 3.4641016**2), rel=1e-6)
    assert found.fall == 1.0
    new, old = np.array([4.0, 5.0, 6.0]), np.array([3.0, 2.0, 1.0])  # differences 1, 3, 5 spread more than either run
    assert compare(new, old, old).rise == pytest.approx(2 * compare(new, old).rise)
    new, old = np.arange(8.0)[::-1] + 3, np.arange(8.0)  # 24 old seeds of the same mean and spread sharpen it
    assert compare(new, np.tile(old, 3), old).rise < compare(new, old, old).rise


def test_without_a_spread_a_difference_is_certain_and_one_seed_says_nothing() -> None:
    old = np.array([[1.0, 2.0], [1.0, 2.0]])
    assert list(compare(old + np.array([[0.5], [0.0]]), old, old).rise) == [0.0, 1.0]
    found = compare(np.array([5.0]), np.array([1.0]))
    assert np.isnan([found.rise, found.seed_rise]).all()
    assert seen(np.array(0.1), 0, 0.01) == math.inf


def test_neighbouring_seeds_that_are_alike_are_recognised_and_others_hardly_ever() -> None:
    """At a level of 1e-3 more than 2 of 100 independent draws are recognised with a chance of 2e-4, also where all
    cells are one."""
    random = np.random.default_rng(5)
    assert all(dependence(alike(random, (40, 8))) <= DEPENDENT for _ in range(10))
    found = [dependence(np.repeat(random.standard_normal((1, 8)), 20, axis=0)) <= DEPENDENT for _ in range(50)]
    found += [dependence(random.standard_t(3, (40, 8))) <= DEPENDENT for _ in range(50)]
    assert sum(found) <= 2


def test_holm_is_the_published_example_of_the_whole_family_run_by_run() -> None:
    # Holm 1979: thresholds level/3, level/2, level. 0.01 <= 0.0167 falls, 0.03 > 0.025 stops the rest.
    p = np.array([[0.03, 0.01, 0.04], [0.02, 0.01, 0.04]])
    assert holm(p, 0.05).tolist() == [[False, True, False], [True, True, True]]
    assert list(holm(np.array([0.01]), 0.05, family=10)) == [False]
    assert list(holm(np.array([math.nan, 0.001]), 0.05)) == [False, True]  # what is unknown never falls


def test_unchanged_seeds_are_called_rare_as_often_as_promised() -> None:
    """20,000 draws; P(p <= 0.01) is within four standard errors of 0.01 (binomial); of the better of two, and of the
    worst of eight seeds (Bonferroni), at most."""
    y = np.random.default_rng(7).normal(size=(2, 20_000, 8))
    error = math.sqrt(0.01 * 0.99 / 20_000)
    found = compare(y[0], y[1])
    assert abs((found.rise <= 0.01).mean() - 0.01) < 4 * error
    assert 0.005 < (found.seed_rise <= 0.01).mean() < 0.01 + 4 * error
    for shared in (0.0, 1.0, 3.0):
        luck = shared * np.random.default_rng(8).normal(size=(20_000, 8))
        assert 0.004 < (compare(y[0] + luck, y[1] + luck, y[1] + luck).rise <= 0.01).mean() < 0.01 + 4 * error


def test_the_rise_that_is_called_seen_is_caught_99_times_in_100() -> None:
    """20,000 draws: the formula is an approximation, good here to half a percent of chance."""
    for baseline, spread in ((8, 0.0145), (24, 0.0245)):
        error, freedom = np.array(spread * math.sqrt(1 / 8 + 1 / baseline)), 8 + baseline - 2
        rise = math.expm1(float(seen(error, freedom, LEVEL / (CELLS * TESTS))))
        assert 0.985 < caught(20_000, spread, rise, baseline) < 0.995


def test_heavy_tails_are_recognised_and_unchanged_runs_with_them_hardly_ever_fail() -> None:
    """Noise of t of 3 degrees, 500 unchanged cells, 40 runs: 4 in 10 failed where a single seed had 7 degrees, so all
    40 would pass with a chance of 1e-9. Of normal noise nothing is said: 2 of 100 at most, as 8 seeds of 18 cells have
    by chance."""
    assert failed(40, 0.014, heavier) == 0
    random = np.random.default_rng(6)
    assert {*tail(heavier(random, (20, 500, 24)))} <= {2.0, 3.0, 4.0}
    assert (tail(random.standard_normal((100, 500, 24))) == TAIL).all()
    assert (tail(random.standard_normal((200, 18, 8))) < TAIL).mean() < 0.05
    assert (tail(np.ones((18, 8))) == TAIL).all()
