"""So many hits in so many tries: between which bounds is the rate?"""

from dataclasses import dataclass

from scipy.special import betaincinv

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rate:
    """hits of tries, with the one-sided 95% bounds of Clopper and Pearson."""

    hits: int
    tries: int

    @property
    def upper(self) -> float:
        """No larger rate would be this lucky in more than 5% of experiments."""
        return 1.0 if self.hits == self.tries else float(betaincinv(self.hits + 1, self.tries - self.hits, CONFIDENCE))

    @property
    def lower(self) -> float:
        """No smaller rate would hit this often in more than 5%."""
        return 1 - Rate(self.tries - self.hits, self.tries).upper

    def __str__(self) -> str:
        return f"{self.hits} of {self.tries:,}"
