"""Every cell against its baseline: the tests of `statistics.py` at the levels of `policy.py`, over all cells at once.

The second look is at the cells only that the first left undecided, with fresh seeds and with those of both looks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from accuracy.check.cell import Cell, Key
from accuracy.check.item import percent
from accuracy.check.policy import EFFECT, LEVEL, NEAR
from accuracy.check.statistics import Comparison, compare, holm

MEASURES = ("effect", "rise", "fall", "seed_effect", "seed_rise")


@dataclass(frozen=True)
class Finding:
    """label: regression, outlier, undecided, improved, changed, same or identical."""

    label: str
    reason: str
    effect: float
    p: float


@dataclass(frozen=True)
class _Compared:
    paired: bool
    seeds: tuple[int, int]
    identical: bool
    effect: float
    rise: float
    fall: float
    seed_effect: float
    seed_rise: float


def first_look(cells: Mapping[Key, Cell], baseline: Mapping[Key, Cell], family: int = 0) -> dict[Key, Finding]:
    """A finding for each cell that has numbers on both sides; family: of how many in all, where these are a part."""
    keys = [key for key, cell in cells.items() if cell.y and key in baseline and baseline[key].y]
    compared = [_compare(cells[key], baseline[key]) for key in keys]
    if not keys:
        return {}
    every = Comparison(*(np.array([getattr(each, name) for each in compared]) for name in MEASURES))
    found = judged(every, max(family, len(keys)))
    return {
        key: _found(each, *(bool(mask[place]) for mask in found))
        for place, (key, each) in enumerate(zip(keys, compared, strict=True))
    }


class Judged(NamedTuple):
    """Masks over cells, the last axis; a cell can be in several, and the first counts."""

    regression: np.ndarray
    outlier: np.ndarray
    undecided: np.ndarray
    improved: np.ndarray


def judged(found: Comparison, family: int | None = None) -> Judged:
    """The first look, over all cells of a run at once; axes in front are runs of their own."""
    large = found.effect > EFFECT
    return Judged(
        regression=holm(found.rise, LEVEL, family) & large,
        outlier=holm(found.seed_rise, LEVEL, family) & (found.seed_effect > EFFECT),
        undecided=(holm(found.rise, NEAR, family) | np.isnan(found.rise)) & large,
        improved=holm(found.fall, LEVEL, family) & (found.effect < -EFFECT),
    )


def second_look(both: Cell, fresh: Cell, baseline: Cell, family: int) -> Finding:
    """both: the seeds of both looks; fresh: the second's. family: how many cells the first look had. It is the last."""
    each, newest = _compare(both, baseline), _compare(fresh, baseline)
    level = LEVEL / family
    found = _found(
        each,
        regression=each.rise <= level and each.effect > EFFECT,
        outlier=False,
        undecided=False,
        improved=each.fall <= level and each.effect < -EFFECT,
    )
    if found.label != "regression" and newest.seed_rise <= level and newest.seed_effect > EFFECT:
        found = Finding("outlier", _outlier(newest), newest.effect, newest.seed_rise)
    return Finding(found.label, f"after two looks: {found.reason}", found.effect, found.p)


def _compare(cell: Cell, baseline: Cell) -> _Compared:
    """Paired where the baseline has every seed of the run, and there are two at least."""
    paired = len(cell.y) > 1 and set(cell.y) <= set(baseline.y)
    new, old = cell.values(), baseline.values(cell.seeds if paired else None)
    found = compare(new, old, paired)
    single = compare(new, baseline.values(), False)  # one seed stands out from all seeds of the baseline
    repeated = set(cell.y) <= set(baseline.y)
    return _Compared(
        paired=paired,
        seeds=(len(new), len(old)),
        identical=repeated and bool((new == baseline.values(cell.seeds)).all()),
        effect=float(found.effect),
        rise=float(found.rise),
        fall=float(found.fall),
        seed_effect=float(single.seed_effect),
        seed_rise=float(single.seed_rise),
    )


def _found(each: _Compared, regression: bool, outlier: bool, undecided: bool, improved: bool) -> Finding:
    m, n = each.seeds
    how = f"{m} seeds, paired" if each.paired else f"{m} seeds against the baseline's {n}"
    chance = "" if math.isnan(each.rise) else f", {_chance(min(each.rise, each.fall))}"
    text = f"{percent(each.effect)} against the baseline ({how}{chance})"
    if regression:
        return Finding("regression", text, each.effect, each.rise)
    if outlier:
        return Finding("outlier", _outlier(each), each.effect, each.seed_rise)
    if undecided:
        return Finding("undecided", f"{text}: too few seeds to tell", each.effect, each.rise)
    if each.identical:
        return Finding("identical", "the baseline's numbers, to the last bit", 0.0, each.rise)
    if improved:
        return Finding("improved", f"{text}: publish a new baseline", each.effect, each.fall)
    return Finding("changed" if each.paired else "same", text, each.effect, each.rise)


def _outlier(each: _Compared) -> str:
    return f"one seed is {percent(each.seed_effect)} against the baseline's mean ({_chance(each.seed_rise)})"


def _chance(p: float) -> str:
    """`p = 2e-7`; what the distribution is not good for is not said."""
    return f"p = {p:.1g}" if p > 1e-14 else "p < 1e-14"
