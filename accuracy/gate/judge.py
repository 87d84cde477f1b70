"""Every cell against its baseline: one label, one reason. The tests of `statistics.py` over all cells and measures at
once. The second look is at the cells only that the first left undecided, with fresh seeds and with those of both."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from accuracy.core.number import ratio
from accuracy.gate.statistics import LEVEL, NEAR, TAIL, Comparison, compare, holm, seen, tail
from accuracy.results.cell import BIAS, EFFECT, FLOOR, GAIN, LARGEST, RANK, Cell, Key

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
GRAVITY = {label: index for index, label in enumerate(STATE_OF)}


class Measure(NamedTuple):
    """A number of a cell that has a baseline of its own. name: as `Cell.measure` has it. effect: a smaller rise is no
    regression; alone: the same where seeds are too few for any test. words: what rose, for a reader."""

    name: str
    effect: float
    alone: float
    words: str = ""


# Error over single device's and over the floor: 5%. The worst rank's is the largest number of W: 10%. Of one seed both
# move with the luck of its inputs (1 cell in 40 by more than 5% in reports/inputs_that_matter): a half.
# The largest element's spreads by a tenth to a half over seeds, so half as much again, and three times where nothing
# tells the spread. Bias and gain are sizes, in errors of the baseline: independent roundings of n elements leave
# 1 / sqrt n, below 1% where n is 10^4, and a twentieth of the error is the 5% of the first.
MEASURES = (
    Measure("", EFFECT, EFFECT),
    Measure(FLOOR, EFFECT, math.log(1.5), "error over the rounding floor "),
    Measure(RANK, math.log(1.10), math.log(1.5), "error on the worst rank "),
    Measure(LARGEST, math.log(1.5), math.log(3), "largest error "),
    Measure(BIAS, 0.05, math.inf, "signed mean of the error "),
    Measure(GAIN, 0.05, math.inf, "factor on the reference "),
)
ERROR_ALONE = MEASURES[:1]
RELATIVE = (BIAS, GAIN)  # sizes in errors of the baseline; all others are logarithms
RESULTS = ("out", "dq", "dk", "dv")  # what a function returns: named before lse, and delta, which follows from out
FURTHER = {"undecided": ": too few seeds to tell", "improved": ": accept a new baseline"}

Bound = float | np.ndarray
Tails = Mapping[tuple[str, int], float]
"""Degrees of freedom of a single seed, by the measure and the number of the baseline's seeds; TAIL where none is."""


class Finding(NamedTuple):
    """What the tests say of a cell. label: regression, outlier, undecided, improved, changed, same or identical.
    effect: ln of the rise over the baseline; p: that it is chance. seen: the rise, as effect is, that these seeds and
    their spread catch with a chance of 0.99."""

    label: str
    reason: str
    effect: float
    p: float
    seen: float


@dataclass(frozen=True)
class Item:
    """What a reader learns of a cell, or of a case without numbers: one label, one reason. cell, baseline: numbers,
    where there are any; effect, p, seen: as a Finding has them."""

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
        """Sorts the worst first: by label, results before what follows from them, by the rise, by the ratio."""
        grave = GRAVITY[self.label]
        grave = grave if self.state in (FAILED, INCOMPLETE) else len(STATE_OF) + (self.state == SKIPPED)
        rise = -self.effect if math.isfinite(self.effect) else 0.0
        follows = self.cell is not None and self.cell.get("tensor") not in RESULTS
        return grave, follows, rise, -self.cell.ratio if self.cell is not None and self.cell.y else 0.0

    @property
    def rank(self) -> int | None:
        """The rank whose error rose most over the baseline's, or is largest without one; None where it stands out by
        less than EFFECT from all ranks together."""
        if self.cell is None or len(self.cell.ranks) < 2:
            return None
        old, before = (self.baseline.ranks, self.baseline.ratio) if self.baseline and self.baseline.y else ({}, 1.0)
        rises = {rank: ratio / old.get(rank, before if old else 1.0) for rank, ratio in self.cell.ranks.items()}
        worst = max(rises, key=lambda rank: rises[rank])
        of_all = self.cell.ratio / before if self.cell.y else 0.0
        return worst if rises[worst] > of_all * math.exp(EFFECT) else None

    @property
    def where(self) -> str:
        """`ring bfloat16 W=4 dq, rank 2`."""
        return self.name if self.rank is None else f"{self.name}, rank {self.rank}"

    def but(self, label: str, reason: str) -> "Item":
        """The same item with another word on it."""
        return replace(self, label=label, reason=reason)


def percent(effect: float) -> str:
    """`+10.3%` of a logarithm; `12600×` of a large one."""
    if not math.isfinite(effect):
        return "no number"
    return f"{math.expm1(effect):+.1%}" if effect < math.log(10) else ratio(math.exp(effect))


class Judged(NamedTuple):
    """Masks over cells, the last axis; a cell can be in several, and the first counts."""

    regression: np.ndarray
    outlier: np.ndarray
    undecided: np.ndarray
    improved: np.ndarray


def judged(found: Comparison, tests: int | None = None, least: Bound = EFFECT, alone: Bound | None = None) -> Judged:
    """A look, over all tests of a run at once; axes in front are runs of their own. least: the rise that is none yet;
    alone: the same where there is no p-value."""
    large = found.effect > least
    unknown = np.isnan(found.rise) & (found.effect > (least if alone is None else alone))
    return Judged(
        regression=holm(found.rise, LEVEL, tests) & large,
        outlier=holm(found.seed_rise, LEVEL, tests) & (found.seed_effect > least),
        undecided=holm(found.rise, NEAR, tests) & large | unknown,
        improved=holm(found.fall, LEVEL, tests) & (found.effect < -np.asarray(least)),
    )


def first_look(
    cells: Mapping[Key, Cell], baseline: Mapping[Key, Cell], family: int = 0, measures: Sequence[Measure] = MEASURES
) -> dict[Key, Finding]:
    """A finding for each cell that has numbers on both sides; family: of how many in all, where these are a part."""
    keys = [key for key, cell in cells.items() if cell.y and key in baseline and baseline[key].y]
    pairs = [pair for key in keys for pair in _pairs(key, cells[key], baseline[key], measures)]
    compared = _compared(pairs, tails(baseline.values(), measures))
    found = _labelled(pairs, compared, max(family, len(keys)) * len(measures))
    return {key: _finding(found[key], cells[key].equals(baseline[key])) for key in keys}


def second_look(
    looks: Mapping[Key, tuple[Cell, Cell]], baseline: Mapping[Key, Cell], family: int
) -> dict[Key, Finding]:
    """The last look. looks: cells with the seeds of both looks, whose mean counts, and of the second alone, whose
    single seeds do; family: how many cells the first look had."""
    heavy = tails(baseline.values())
    known = {key: [each for each in MEASURES if all(cell.measure(each.name) for cell in looks[key])] for key in looks}
    both, fresh = (
        [pair for key in looks for pair in _pairs(key, looks[key][look], baseline[key], known[key])] for look in (0, 1)
    )
    both = [pair._replace(highest=last.highest) for pair, last in zip(both, fresh, strict=True)]
    newest = _compared(fresh, heavy)
    compared = replace(_compared(both, heavy), seed_effect=newest.seed_effect, seed_rise=newest.seed_rise)
    found = _labelled(both, compared, family * len(MEASURES), last=True)
    findings = {key: _finding(tested, False) for key, tested in found.items()}
    return {key: each._replace(reason=f"after two looks: {each.reason}") for key, each in findings.items()}


def tails(baseline: Iterable[Cell], measures: Sequence[Measure] = MEASURES) -> Tails:
    """How heavy the noise of the baseline's seeds is, all its cells together."""
    numbers: dict[tuple[str, int], list[list[float]]] = {}
    for cell in baseline:
        for name in (each.name for each in measures):
            values = cell.measure(name)
            numbers.setdefault((name, len(values)), []).append([values[seed] for seed in sorted(values)])
    return {which: float(tail(np.array(rows))) for which, rows in numbers.items() if which[1]}


class _Pair(NamedTuple):
    """new, old: by seed, ascending; highest: the seed of the last look that is largest."""

    key: Key
    measure: Measure
    new: np.ndarray
    old: np.ndarray
    twins: np.ndarray | None
    highest: int


def _pairs(key: Key, cell: Cell, baseline: Cell, measures: Sequence[Measure]) -> Iterable[_Pair]:
    """What is compared for each measure that both have; paired where the baseline has every seed of the run, and there
    are two at least."""
    for measure in measures:
        new, old = cell.measure(measure.name), baseline.measure(measure.name)
        if new and old:
            unit = baseline.floors if measure.name in RELATIVE else 1.0
            ours, theirs = (np.array([each[seed] / unit for seed in sorted(each)]) for each in (new, old))
            paired = new.keys() <= old.keys() and len(new) > 1
            twins = np.array([old[seed] / unit for seed in sorted(new)]) if paired else None
            yield _Pair(key, measure, ours, theirs, twins, max(new, key=lambda seed: new[seed]))


def _compared(pairs: Sequence[_Pair], heavy: Tails) -> Comparison:
    """Over the pairs; all that have the same numbers of seeds in one call."""
    alike: dict[tuple[int, int, bool], list[int]] = {}
    for index, (_, _, new, old, twins, _) in enumerate(pairs):
        alike.setdefault((len(new), len(old), twins is not None), []).append(index)
    columns = np.full((7, len(pairs)), np.nan)
    for (_, n, paired), indices in alike.items():
        _, measures, new, old, twins, _ = zip(*(pairs[index] for index in indices), strict=True)
        degrees = np.array([heavy.get((each.name, n), TAIL) for each in measures])
        found = compare(np.stack(new), np.stack(old), np.stack(twins) if paired else None, degrees)
        columns[:, indices] = np.stack(np.broadcast_arrays(*vars(found).values()))
    return Comparison(*columns)


def _labelled(
    pairs: Sequence[_Pair], compared: Comparison, tests: int, last: bool = False
) -> dict[Key, list[tuple[_Pair, Any]]]:
    """By key its pairs, with their numbers, their label, empty where the tests say nothing, and the rise surely caught.
    last: nothing is left undecided."""
    least, alone = (np.array([getattr(pair.measure, name) for pair in pairs]) for name in ("effect", "alone"))
    masks = judged(compared, tests, least, alone)._asdict()
    if last:
        del masks["undecided"]
    levels = LEVEL / max(tests, 1) / np.array([1 if pair.twins is None else 2 for pair in pairs])
    caught = seen(compared.error, compared.freedom, levels)
    numbers = pd.DataFrame(vars(compared)).assign(label=np.select([*masks.values()], [*masks], ""), seen=caught)
    found: dict[Key, list[tuple[_Pair, Any]]] = {}
    for pair, each in zip(pairs, numbers.itertuples(), strict=True):
        found.setdefault(pair.key, []).append((pair, each))
    return found


def _finding(tested: Sequence[tuple[_Pair, Any]], identical: bool) -> Finding:
    """The gravest word of all measures, the first of them where several have it; only the error can improve."""
    error = tested[0][1]
    pair, found = min(tested, key=lambda pair: GRAVITY.get(pair[1].label, GRAVITY["improved"]))
    label, p = found.label, {"outlier": found.seed_rise, "improved": found.fall}.get(found.label, found.rise)
    m, n, paired = len(pair.new), len(pair.old), pair.twins is not None
    if label == "outlier":
        text = f"seed {pair.highest} is {_size(pair, found.seed_effect)} against the baseline's mean ({_chance(p)})"
    else:
        how = f"{m} of the baseline's {n} seeds, paired" if paired else f"{m} seeds against the baseline's {n}"
        chance = "" if math.isnan(p) else f", {_chance(min(found.rise, found.fall))}"
        text = f"{_size(pair, found.effect)} against the baseline ({how}{chance}){FURTHER.get(label, '')}"
    text = pair.measure.words + text
    if identical and label in ("", "improved"):
        label, text, p = "identical", "the baseline's numbers of these seeds, to the last bit", found.rise
    effect = error.effect if pair.measure.name in RELATIVE else found.effect
    return Finding(label or ("changed" if paired else "same"), text, effect, p, error.seen)


def _size(pair: _Pair, effect: float) -> str:
    """`+10.3%` of a logarithm; `+0.500 errors` of a size."""
    return f"{effect:+.3f} errors" if pair.measure.name in RELATIVE else percent(effect)


def _chance(p: float) -> str:
    """`p = 2e-7`; what the distribution is not good for is left out."""
    return f"p = {p:.1g}" if p > 1e-14 else "p < 1e-14"
