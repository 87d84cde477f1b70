"""Every cell against its baseline: the tests of `statistics.py` at the levels of `policy.py`, over all cells and
measures at once. The second look is at the cells only that the first left undecided, with fresh seeds and with those of
both looks."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from accuracy.gate.item import percent
from accuracy.gate.statistics import Comparison, compare, holm, seen
from accuracy.gate.tail import tail
from accuracy.results.cell import Cell, Key
from accuracy.results.policy import EFFECT, LEVEL, MEASURES, NEAR, RELATIVE, TAIL, Measure

Bound = float | np.ndarray
Tails = Mapping[tuple[str, int], float]
"""Degrees of freedom of a single seed, by the measure and the number of the baseline's seeds; TAIL where none is."""
BAD = ("regression", "outlier", "undecided")  # gravest first
JUDGED = ("effect", "rise", "fall", "seed_effect", "seed_rise")


@dataclass(frozen=True)
class CellFinding:
    """label: regression, outlier, undecided, improved, changed, same or identical. seen: a rise surely caught."""

    label: str
    reason: str
    effect: float
    p: float
    seen: float


class _Asked(NamedTuple):
    measure: Measure
    new: np.ndarray
    old: np.ndarray
    twins: np.ndarray | None


class _Compared(NamedTuple):
    measure: Measure
    paired: bool
    seeds: tuple[int, int]
    found: Comparison
    seen: float


def first_look(
    cells: Mapping[Key, Cell], baseline: Mapping[Key, Cell], family: int = 0, measures: Sequence[Measure] = MEASURES
) -> dict[Key, CellFinding]:
    """A finding for each cell that has numbers on both sides; family: of how many in all, where these are a part."""
    keys = [key for key, cell in cells.items() if cell.y and key in baseline and baseline[key].y]
    tests = max(family, len(keys)) * len(measures)
    asked = [(key, each) for key in keys for each in _asked(cells[key], baseline[key], measures)]
    if not keys:
        return {}
    compared = _compare([each for _, each in asked], tests, tails(baseline.values(), measures))
    said: dict[Key, list[tuple[_Compared, str]]] = {}
    for (key, _), each, label in zip(asked, compared, _labels(compared, tests), strict=True):
        said.setdefault(key, []).append((each, label))
    return {key: _gravest(said[key], cells[key].equals(baseline[key])) for key in keys}


def tails(baseline: Iterable[Cell], measures: Sequence[Measure] = MEASURES) -> Tails:
    """How heavy the noise of the baseline's seeds is, all its cells together."""
    numbers: dict[tuple[str, int], list[list[float]]] = {}
    for cell in baseline:
        for name in (each.name for each in measures):
            values = cell.more.get(name, {}) if name else cell.y
            numbers.setdefault((name, len(values)), []).append([values[seed] for seed in sorted(values)])
    return {which: float(tail(np.array(rows))) for which, rows in numbers.items() if which[1]}


def _labels(compared: Sequence[_Compared], tests: int) -> list[str]:
    """What the first look says of each measure; empty where it says nothing."""
    every = {name: np.array([getattr(each.found, name) for each in compared]) for name in JUDGED}
    least = np.array([each.measure.effect for each in compared])
    alone = np.array([each.measure.alone for each in compared])
    masks = judged(Comparison(**every, error=np.array([]), freedom=0), tests, least, alone)._asdict()
    return [next((label for label, mask in masks.items() if mask[place]), "") for place in range(len(compared))]


def _gravest(said: Sequence[tuple[_Compared, str]], identical: bool) -> CellFinding:
    """The gravest word of all measures, the first of them where several have it; only the error can improve."""
    error, label = said[0]
    each = error
    if grave := [pair for pair in said if pair[1] in BAD]:
        each, label = min(grave, key=lambda pair: BAD.index(pair[1]))
    effect = (error if each.measure.name in RELATIVE else each).found.effect
    return replace(_found(each, label, identical), effect=float(effect), seen=error.seen)


class Judged(NamedTuple):
    """Masks over cells, the last axis; a cell can be in several, and the first counts."""

    regression: np.ndarray
    outlier: np.ndarray
    undecided: np.ndarray
    improved: np.ndarray


def judged(found: Comparison, tests: int | None = None, least: Bound = EFFECT, alone: Bound | None = None) -> Judged:
    """The first look, over all tests of a run at once; axes in front are runs of their own. least: the rise that is
    none yet; alone: the same where there is no p-value."""
    large = found.effect > least
    unknown = np.isnan(found.rise) & (found.effect > (least if alone is None else alone))
    return Judged(
        regression=holm(found.rise, LEVEL, tests) & large,
        outlier=holm(found.seed_rise, LEVEL, tests) & (found.seed_effect > least),
        undecided=holm(found.rise, NEAR, tests) & large | unknown,
        improved=holm(found.fall, LEVEL, tests) & (found.effect < -np.asarray(least)),
    )


def second_look(both: Cell, fresh: Cell, baseline: Cell, family: int, heavy: Tails) -> CellFinding:
    """The last look. both: the seeds of both looks; fresh: the second's. family: how many cells the first look had.
    heavy: of the whole baseline."""
    tests = family * len(MEASURES)
    asked = ([*_asked(cell, baseline)] for cell in (both, fresh))
    pairs = zip(*(_compare(each, tests, heavy) for each in asked), strict=True)
    found = _gravest([_settled(each, newest, LEVEL / tests) for each, newest in pairs], False)
    return replace(found, reason=f"after two looks: {found.reason}")


def _settled(each: _Compared, newest: _Compared, level: float) -> tuple[_Compared, str]:
    least = each.measure.effect
    if each.found.rise <= level and each.found.effect > least:
        return each, "regression"
    if newest.found.seed_rise <= level and newest.found.seed_effect > least:
        return newest, "outlier"
    return each, "improved" if each.found.fall <= level and each.found.effect < -least else ""


def _asked(cell: Cell, baseline: Cell, measures: Sequence[Measure] = MEASURES) -> Iterator[_Asked]:
    """What is compared for each measure that both have; paired where the baseline has every seed of the run, and there
    are two at least."""
    for measure in measures:
        new, old = (each.more.get(measure.name, {}) if measure.name else each.y for each in (cell, baseline))
        if new and old:
            unit = baseline.floors if measure.name in RELATIVE else 1.0
            ours, theirs = (np.array([each[seed] / unit for seed in sorted(each)]) for each in (new, old))
            paired = new.keys() <= old.keys() and len(new) > 1
            twins = np.array([old[seed] / unit for seed in sorted(new)]) if paired else None
            yield _Asked(measure, ours, theirs, twins)


def _compare(asked: Sequence[_Asked], tests: int, heavy: Tails) -> list[_Compared]:
    """In their order; all that have the same numbers of seeds in one call."""
    alike: dict[tuple[int, int, bool], list[int]] = {}
    for place, each in enumerate(asked):
        alike.setdefault((len(each.new), len(each.old), each.twins is not None), []).append(place)
    compared: dict[int, _Compared] = {}
    for (m, n, paired), places in alike.items():
        mine = [asked[place] for place in places]
        twins = np.stack([each.twins for each in mine if each.twins is not None]) if paired else None
        degrees = np.array([heavy.get((each.measure.name, n), TAIL) for each in mine])
        found = compare(np.stack([each.new for each in mine]), np.stack([each.old for each in mine]), twins, degrees)
        caught = seen(found.error, found.freedom, LEVEL / tests / (1 + paired)).tolist()
        for row, place in enumerate(places):
            compared[place] = _Compared(asked[place].measure, paired, (m, n), found.at(row), caught[row])
    return [compared[place] for place in range(len(asked))]


FURTHER = {"undecided": ": too few seeds to tell", "improved": ": publish a new baseline"}


def _found(each: _Compared, label: str, identical: bool) -> CellFinding:
    """label: what the tests say, empty where they say nothing."""
    m, n = each.seeds
    effect, rise, fall = (float(value) for value in (each.found.effect, each.found.rise, each.found.fall))
    what = each.measure.words
    if label == "outlier":
        p = float(each.found.seed_rise)
        text = (
            f"{what}one seed is {_size(each, float(each.found.seed_effect))} against the baseline's mean ({_chance(p)})"
        )
        return CellFinding("outlier", text, effect, p, each.seen)
    if identical and label in ("", "improved"):
        return CellFinding("identical", "the baseline's numbers, to the last bit", effect, rise, each.seen)
    how = f"{m} of the baseline's {n} seeds, paired" if each.paired else f"{m} seeds against the baseline's {n}"
    chance = "" if math.isnan(rise) else f", {_chance(min(rise, fall))}"
    text = f"{what}{_size(each, effect)} against the baseline ({how}{chance}){FURTHER.get(label, '')}"
    label = label or ("changed" if each.paired else "same")
    return CellFinding(label, text, effect, fall if label == "improved" else rise, each.seen)


def _size(each: _Compared, effect: float) -> str:
    """`+10.3%` of a logarithm; `+0.500 errors` of a size."""
    return f"{effect:+.3f} errors" if each.measure.name in RELATIVE else percent(effect)


def _chance(p: float) -> str:
    """`p = 2e-7`; what the distribution is not good for is not said."""
    return f"p = {p:.1g}" if p > 1e-14 else "p < 1e-14"
