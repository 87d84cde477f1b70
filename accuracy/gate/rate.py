"""So many hits in so many tries: between which bounds is the rate?"""

import math
from collections.abc import Callable
from dataclasses import dataclass

CONFIDENCE = 0.95


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
