"""Every cell against its baseline: the tests of `statistics.py` at the levels of `policy.py`, over all cells at once.
The second look is at the cells only that the first left undecided, with fresh seeds and with those of both looks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from accuracy.gate.item import percent
from accuracy.gate.statistics import Comparison, compare, holm, seen
from accuracy.results.cell import Cell, Key
from accuracy.results.policy import EFFECT, LEVEL, NEAR

JUDGED = ("effect", "rise", "fall", "seed_effect", "seed_rise")


@dataclass(frozen=True)
class CellFinding:
    """label: regression, outlier, undecided, improved, changed, same or identical. seen: a rise surely caught."""

    label: str
    reason: str
    effect: float
    p: float
    seen: float


class _Compared(NamedTuple):
    paired: bool
    seeds: tuple[int, int]
    identical: bool
    found: Comparison
    seen: float


def first_look(cells: Mapping[Key, Cell], baseline: Mapping[Key, Cell], family: int = 0) -> dict[Key, CellFinding]:
    """A finding for each cell that has numbers on both sides; family: of how many in all, where these are a part."""
    keys = [key for key, cell in cells.items() if cell.y and key in baseline and baseline[key].y]
    family = max(family, len(keys))
    compared = [_compare(cells[key], baseline[key], family) for key in keys]
    if not keys:
        return {}
    every = {name: np.array([getattr(each.found, name) for each in compared]) for name in JUDGED}
    masks = judged(Comparison(**every, error=np.array([]), freedom=0), family)._asdict()
    labels = [next((label for label, mask in masks.items() if mask[place]), "") for place in range(len(keys))]
    return {key: _found(each, label) for key, each, label in zip(keys, compared, labels, strict=True)}


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


def second_look(both: Cell, fresh: Cell, baseline: Cell, family: int) -> CellFinding:
    """both: the seeds of both looks; fresh: the second's. family: how many cells the first look had. It is the last."""
    each, newest = _compare(both, baseline, family), _compare(fresh, baseline, family)
    level, label = LEVEL / family, ""
    if each.found.rise <= level and each.found.effect > EFFECT:
        label = "regression"
    elif newest.found.seed_rise <= level and newest.found.seed_effect > EFFECT:
        each, label = newest, "outlier"
    elif each.found.fall <= level and each.found.effect < -EFFECT:
        label = "improved"
    found = _found(each, label)
    return replace(found, reason=f"after two looks: {found.reason}")


def _compare(cell: Cell, baseline: Cell, family: int) -> _Compared:
    """Paired where the baseline has every seed of the run, and there are two at least."""
    new, old = cell.values(), baseline.values()
    repeated = set(cell.y) <= set(baseline.y)
    twins = baseline.values(cell.seeds) if repeated else None
    paired = twins is not None and len(new) > 1
    same_errors = set(cell.y) != set(baseline.y) or cell.error == baseline.error  # both may have got worse alike
    found = compare(new, old, twins if paired else None)
    identical = twins is not None and bool((new == twins).all()) and same_errors
    caught = float(seen(found.error, found.freedom, LEVEL / family / (1 + paired)))
    return _Compared(paired, (len(new), len(old)), identical, found, caught)


FURTHER = {"undecided": ": too few seeds to tell", "improved": ": publish a new baseline"}


def _found(each: _Compared, label: str) -> CellFinding:
    """label: what the tests say, empty where they say nothing."""
    m, n = each.seeds
    effect, rise, fall = (float(value) for value in (each.found.effect, each.found.rise, each.found.fall))
    if label == "outlier":
        p = float(each.found.seed_rise)
        text = f"one seed is {percent(float(each.found.seed_effect))} against the baseline's mean ({_chance(p)})"
        return CellFinding("outlier", text, effect, p, each.seen)
    if each.identical and label in ("", "improved"):
        return CellFinding("identical", "the baseline's numbers, to the last bit", 0.0, rise, each.seen)
    how = f"{m} of the baseline's {n} seeds, paired" if each.paired else f"{m} seeds against the baseline's {n}"
    chance = "" if math.isnan(rise) else f", {_chance(min(rise, fall))}"
    text = f"{percent(effect)} against the baseline ({how}{chance}){FURTHER.get(label, '')}"
    label = label or ("changed" if each.paired else "same")
    return CellFinding(label, text, effect, fall if label == "improved" else rise, each.seen)


def _chance(p: float) -> str:
    """`p = 2e-7`; what the distribution is not good for is not said."""
    return f"p = {p:.1g}" if p > 1e-14 else "p < 1e-14"
