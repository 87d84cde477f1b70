"""How often does the gate fail an unchanged run, and what does it miss? Its own tests on made-up runs of known change.
Every simulated run, of 8 seeds, has a baseline of its own, of 24 or 8: nothing is shared."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from accuracy.gate.judge import MEASURES, Judged, judged
from accuracy.gate.statistics import LEVEL, NEAR, Comparison, compare, tail
from accuracy.results.cell import EFFECT

Array = np.ndarray
SEEDS = 8  # of a run, where nothing else is said
BASELINE = 24  # of a baseline: measured once for many runs, and what is known of it sharpens every one
CELLS = 500
TESTS = len(MEASURES)  # of a cell
BLOCK = 20  # runs drawn at once
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


class Rate(NamedTuple):
    """hits of tries."""

    hits: int
    tries: int


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Noise of unit variance: what the mean over a large tensor has."""
    return random.standard_normal(shape)


def heavier(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Student's t of 3 degrees, unit variance: a few elements decide a seed's error."""
    return random.standard_t(3, shape) / math.sqrt(3)


def alike(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Neighbouring seeds correlated by 0.9, stationary: AR(1)."""
    noise = random.standard_normal(shape)
    for place in range(1, shape[-1]):
        noise[..., place] = 0.9 * noise[..., place - 1] + math.sqrt(1 - 0.9**2) * noise[..., place]
    return noise


@dataclass(frozen=True)
class Design:
    """What is simulated. paired: the run has seeds of the baseline; baseline: how many it has; draw: the noise; seeds:
    of the run."""

    paired: bool
    baseline: int = BASELINE
    draw: Draw = normal
    seeds: int = SEEDS

    def compared(self, new: Array, old: Array) -> Comparison:
        """The gate's own tests of the cells of a run, or of a cell of each of many runs, beside others of its noise."""
        return compare(new, old, self.twins(new, old), tail(old))

    def twins(self, new: Array, old: Array) -> Array | None:
        """The baseline's y at the run's seeds."""
        return old[..., : new.shape[-1]] if self.paired and 1 < new.shape[-1] <= self.baseline else None

    def judged(self, new: Array, old: Array) -> Judged:
        """The gate's labels of a run's cells. Only cells that rose by EFFECT or have a seed that did are tested, as no
        other can fail: to Holm's procedure the others count as unchanged."""
        twins = self.twins(new, old)
        rise = np.maximum(
            new.mean(axis=-1) - (old if twins is None else twins).mean(axis=-1), new.max(axis=-1) - old.mean(axis=-1)
        )
        large = rise > EFFECT
        tested = compare(new[large], old[large], None if twins is None else twins[large], tail(old))
        return judged(tested, len(new))


def false_alarms(spreads: Array, runs: int, design: Design) -> tuple[Rate, Rate]:
    """How many runs of unchanged cells fail, and how many ask for a second look. spreads: one a cell."""
    random = np.random.default_rng(0)
    spreads = np.repeat(spreads, TESTS)
    failed = asked = 0
    for start in range(0, runs, BLOCK):
        shape = (min(BLOCK, runs - start), len(spreads))
        new, old = (design.draw(random, (*shape, many)) * spreads[:, None] for many in (design.seeds, design.baseline))
        for each in zip(new, old, strict=True):
            found = design.judged(*each)
            fails = bool((found.regression | found.outlier).any())
            failed += fails
            asked += not fails and bool(found.undecided.any())
    return Rate(failed, runs), Rate(asked, runs)


def caught(spreads: Array, rise: float, runs: int, design: Design) -> tuple[Rate, Rate]:
    """How often a rise of one cell among CELLS fails the run, at the first look and after two. spreads: one a run. Only
    the cell that rose is drawn, and held to the strictest of Holm's levels: the others can only help it fall."""
    random = np.random.default_rng(1)
    of_run = random.choice(spreads, runs)[:, None]
    old = design.draw(random, (runs, design.baseline)) * of_run
    first, fresh = (design.draw(random, (runs, design.seeds)) * of_run + math.log1p(rise) for _ in range(2))
    look = design.compared(first, old)
    level, large = LEVEL / (CELLS * TESTS), look.effect > EFFECT
    fails = (look.rise <= level) & large | (look.seed_rise <= level) & (look.seed_effect > EFFECT)
    again = design.compared(np.concatenate([first, fresh], axis=-1), old)
    later = fails | (look.rise <= NEAR / (CELLS * TESTS)) & large & (again.rise <= level) & (again.effect > EFFECT)
    return Rate(int(fails.sum()), runs), Rate(int(later.sum()), runs)
