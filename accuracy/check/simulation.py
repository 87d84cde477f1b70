"""How often does the gate cry wolf, and what does it miss? Its own tests on made-up runs of known change.

`python -m accuracy.check.simulation` prints the table of reports/gate_power/simulated.txt; experiments/gate_power asks
the same of measured spreads. Every run has a baseline of its own: 8 seeds on either side, nothing shared.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accuracy.check.against import judged
from accuracy.check.policy import EFFECT, LEVEL, NEAR
from accuracy.check.statistics import compare

Array = np.ndarray
SEEDS = 8
CELLS = 500
BLOCK = 100  # runs drawn at once
CONFIDENCE = 0.95
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Noise of unit variance: what the mean over a large tensor has."""
    return random.standard_normal(shape)


def heavy(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Student's t of 5 degrees, unit variance: a few elements decide a seed's error."""
    return random.standard_t(5, shape) / math.sqrt(5 / 3)


@dataclass(frozen=True)
class Rate:
    """hits of tries, with the one-sided 95% bounds of Clopper and Pearson."""

    hits: int
    tries: int

    @property
    def upper(self) -> float:
        """No larger rate would be this lucky in more than 5% of experiments."""
        return 1.0 if self.hits == self.tries else _solve(lambda rate: _at_most(self.hits, self.tries, rate))

    @property
    def lower(self) -> float:
        """No smaller rate would hit this often in more than 5%."""
        return 1 - Rate(self.tries - self.hits, self.tries).upper

    def __str__(self) -> str:
        return f"{self.hits} of {self.tries:,}"


def false_alarms(spreads: Array, runs: int, paired: bool, draw: Draw = normal, seed: int = 0) -> tuple[Rate, Rate]:
    """How many runs of unchanged cells fail, and how many ask for a second look. spreads: of y, one a cell."""
    random = np.random.default_rng(seed)
    failed = asked = 0
    for start in range(0, runs, BLOCK):
        shape = (min(BLOCK, runs - start), len(spreads), SEEDS)
        new, old = (draw(random, shape) * spreads[:, None] for _ in range(2))
        found = judged(compare(new, old, paired))
        fails = (found.regression | found.outlier).any(axis=-1)
        failed += int(fails.sum())
        asked += int((~fails & (found.undecided.any(axis=-1))).sum())
    return Rate(failed, runs), Rate(asked, runs)


def caught(
    spreads: Array, rise: float, runs: int, paired: bool, cells: int = CELLS, draw: Draw = normal, seed: int = 1
) -> tuple[Rate, Rate]:
    """How often a rise of one cell among `cells` fails the run, at the first look and after two. spreads: one a run.

    Only the cell that rose is drawn, and held to the strictest of Holm's levels: the others can only help it fall.
    """
    random = np.random.default_rng(seed)
    of_run = random.choice(spreads, runs)[:, None]
    shift = math.log1p(rise)
    old = draw(random, (runs, SEEDS)) * of_run
    first = draw(random, (runs, SEEDS)) * of_run + shift
    fresh = draw(random, (runs, SEEDS)) * of_run + shift
    look = compare(first, old, paired)
    fails = _fails(look.effect, look.rise, LEVEL / cells) | _fails(look.seed_effect, look.seed_rise, LEVEL / cells)
    near = _fails(look.effect, look.rise, NEAR / cells)
    again = compare(np.concatenate([first, fresh], axis=-1), old, False)
    later = fails | (near & _fails(again.effect, again.rise, LEVEL / cells))
    return Rate(int(fails.sum()), runs), Rate(int(later.sum()), runs)


def _fails(effect: Array, p: Array, level: float) -> Array:
    return (p <= level) & (effect > EFFECT)


def _at_most(hits: int, tries: int, rate: float) -> float:
    """P(X <= hits) of a binomial."""
    if rate <= 0 or rate >= 1:
        return float(rate <= 0)
    log, other = math.log(rate), math.log1p(-rate)
    terms = (
        math.lgamma(tries + 1) - math.lgamma(k + 1) - math.lgamma(tries - k + 1) + k * log + (tries - k) * other
        for k in range(hits + 1)
    )
    return math.fsum(math.exp(term) for term in terms)


def _solve(chance: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > 1 - CONFIDENCE else (low, middle)
    return high


def table(runs: int = 10_000) -> str:
    """Alarms and catches at several spreads and tails."""
    lines = [
        f"{CELLS} cells, {SEEDS} seeds on either side; {runs:,} runs a line; bounds at {CONFIDENCE:.0%} confidence",
        "spread  noise   seeds  false alarms (at most)     second look  10% caught (at least)  after two looks",
    ]
    for spread in (0.004, 0.01, 0.02, 0.05, 0.18):
        for draw in (normal, heavy):
            for paired in (False, True):
                alarms, asked = false_alarms(np.full(CELLS, spread), runs, paired, draw)
                first, later = caught(np.array([spread]), 0.10, runs, paired, draw=draw)
                lines.append(
                    f"{spread:6.1%}  {draw.__name__:6}  {'same' if paired else 'fresh':5}"
                    f"  {alarms!s:>12} ({alarms.upper:.4f})  {asked.hits / runs:15.4f}"
                    f"  {first.hits / runs:.4f} ({first.lower:.4f})  {later.hits / runs:.4f} ({later.lower:.4f})"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
