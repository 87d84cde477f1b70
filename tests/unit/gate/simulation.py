"""The gate's own tests on made-up runs of 8 seeds, each against a baseline of its own."""

import math
from collections.abc import Callable

import numpy as np

from accuracy.gate.judge import MEASURES, judged
from accuracy.gate.statistics import LEVEL, compare, tail
from accuracy.results.cell import EFFECT

Array = np.ndarray
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
SEEDS, BASELINE = 8, 24  # of a run, and of its baseline
CELLS = 500
TESTS = len(MEASURES)  # of a cell


def heavier(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Student's t of 3 degrees, unit variance: a few elements decide a seed's error."""
    return random.standard_t(3, shape) / math.sqrt(3)


def alike(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Neighbouring seeds correlated by 0.9, stationary: AR(1)."""
    noise = random.standard_normal(shape)
    for place in range(1, shape[-1]):
        noise[..., place] = 0.9 * noise[..., place - 1] + math.sqrt(1 - 0.9**2) * noise[..., place]
    return noise


def failed(runs: int, spread: float, draw: Draw) -> int:
    """Simulate runs whose CELLS cells have not changed, and return how many of them the gate fails."""
    random, tests = np.random.default_rng(0), CELLS * TESTS
    count = 0
    for _ in range(runs):
        new, old = (draw(random, (tests, seeds)) * spread for seeds in (SEEDS, BASELINE))
        found = judged(compare(new, old, None, tail(old)), tests)
        count += bool((found.regression | found.outlier).any())
    return count


def caught(runs: int, spread: float, rise: float, baseline: int) -> float:
    """In which share of runs a rise of one cell among CELLS fails the run at the first look. Only that cell is drawn,
    and held to the strictest of Holm's levels: the others can only help it fall."""
    random, level = np.random.default_rng(1), LEVEL / (CELLS * TESTS)
    old, new = (random.standard_normal((runs, seeds)) * spread for seeds in (baseline, SEEDS))
    look = compare(new + math.log1p(rise), old, None, tail(old))
    mean, seed = (look.rise <= level) & (look.effect > EFFECT), (look.seed_rise <= level) & (look.seed_effect > EFFECT)
    return float((mean | seed).mean())
