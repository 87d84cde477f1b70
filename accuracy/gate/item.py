"""What is said of a cell, or of a case that has no numbers: one label, one reason."""

import math
from dataclasses import dataclass, replace

from accuracy.results.cell import Cell, Key
from accuracy.results.policy import EFFECT

PASSED, FAILED, INCOMPLETE, SKIPPED = "passed", "failed", "incomplete", "skipped"
STATE_OF = {  # gravest first: the order of every list
    "logic": FAILED,  # a wrong schedule, by its verdict
    "invalid": FAILED,  # values or shapes that cannot be, by its verdict
    "not finite": FAILED,
    "regression": FAILED,  # significantly more than 5% worse than the baseline
    "outlier": FAILED,  # one seed far outside of the baseline's
    "excess": FAILED,  # beyond the portable rules
    "broken": INCOMPLETE,  # its case died
    "missing": INCOMPLETE,  # planned, or in the baseline, and not there
    "undecided": INCOMPLETE,  # too few seeds to tell: a second look settles it
    "accepted": PASSED,  # beyond the portable rules, as its baseline is
    "improved": PASSED,  # significantly more than 5% better
    "changed": PASSED,  # other numbers on the same seeds, no worse
    "new": PASSED,  # no baseline: the portable rules alone
    "same": PASSED,
    "identical": PASSED,  # to the last bit
    "unsupported": SKIPPED,  # its parts cannot do it
}

GRAVITY = {label: place for place, label in enumerate(STATE_OF)}


@dataclass(frozen=True)
class Item:
    """cell, baseline: numbers, where there are any. effect: ln of the rise over the baseline; p: that it is chance.
    seen: the rise, as effect is, that these seeds and their spread catch with a chance of 0.99."""

    name: str
    label: str
    reason: str
    key: Key | None = None
    cell: Cell | None = None
    baseline: Cell | None = None
    effect: float = math.nan
    p: float = math.nan
    seen: float = math.nan

    @property
    def state(self) -> str:
        """passed, failed, incomplete or skipped."""
        return STATE_OF[self.label]

    @property
    def order(self) -> tuple[float, ...]:
        """Sorts the worst first: by label, then by how far it rose, then by its ratio to single device."""
        grave = GRAVITY[self.label]
        grave = grave if self.state in (FAILED, INCOMPLETE) else len(STATE_OF) + (self.state == SKIPPED)
        rise = -self.effect if math.isfinite(self.effect) else 0.0
        ratio = self.cell.ratio if self.cell is not None and self.cell.y else 0.0
        return grave, rise, -ratio

    @property
    def rank(self) -> int | None:
        """The rank whose error rose most over the baseline's, or is largest without one; None where it stands out by
        less than `policy.EFFECT` from all ranks together."""
        if self.cell is None or len(self.cell.ranks) < 2:
            return None
        old, whole = (self.baseline.ranks, self.baseline.ratio) if self.baseline and self.baseline.y else ({}, 1.0)
        rises = {rank: ratio / old.get(rank, whole if old else 1.0) for rank, ratio in self.cell.ranks.items()}
        worst = max(rises, key=lambda rank: rises[rank])
        usual = self.cell.ratio / whole if self.cell.y else 0.0
        return worst if rises[worst] > usual * math.exp(EFFECT) else None

    @property
    def place(self) -> str:
        """`ring bfloat16 W=4 dq, rank 2`."""
        return self.name if self.rank is None else f"{self.name}, rank {self.rank}"

    def but(self, label: str, reason: str) -> "Item":
        """The same item with another word on it."""
        return replace(self, label=label, reason=reason)


def percent(effect: float) -> str:
    """`+10.3%` of a logarithm."""
    return f"{math.expm1(effect):+.1%}" if math.isfinite(effect) else "no number"
