"""Where is it wrong? The marks that a fault leaves over tensors, ranks, dtypes, inputs and world sizes.

In: the verdicts and the results of one variant in one problem. Out: a `Pattern` for its gravest label, of plain
values, that a sentence is made of.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core.dtype import DTYPES
from accuracy.core.probes import PROBES
from accuracy.results.table import ALL_RANKS, ALL_TENSORS
from accuracy.verdict.evidence import times_single_device
from accuracy.verdict.growth import Growth, fit_growth
from accuracy.verdict.inside import is_healthy
from accuracy.verdict.label import (
    BUGS,
    INVALID,
    LABELS,
    NONDETERMINISTIC,
    NOT_MEASURED,
    PRECISION_FLOOR,
    ROUNDING,
    is_simple,
)
from accuracy.verdict.rows import Rows, columns_of
from accuracy.verdict.rule.factor import STANDARD_ERRORS
from accuracy.verdict.shape import PROBLEM, problem_numbers, shape_of, sizes_of

FORWARD = ("out", "lse")
_READ = ("tensor", "dtype", "world_size", "rank", "inputs", "error_rel", "single_device_rel", "floor_rel", "nonfinite")
RIGHT = 3.0  # a rank whose error is below 3 times single device's is right (rule 5's limit for one rank)


@dataclass(frozen=True)
class Pattern:
    """What is wrong with a variant, where the label is gravest.

    tensors: with that label, in the table's order; others: further ones that are wrong; coarser: beside a bug, those
    that only stop getting better; dtypes, world_sizes: where they have it; sound_dtypes: those where these tensors
    merely round on the inputs that show it; only_dtypes: those that were measured on these, where others were not;
    sizes: at how many ranks they have it, in words; inputs: the distributions that show it; ranks_wrong: of the largest
    world size, with `size` ranks; trend: of each tensor's error over those ranks: rising, falling, or neither; growth:
    over the world size, of each tensor; ratios: relative errors of all tensors at the largest world size that is wrong
    (what merely rounds has no ranks_wrong, trend or ratios); floors: of a `precision_floor`, of out and lse where they
    have it, by the format that shows, the dtypes in which it does; numbers: of the verdicts.
    """

    variant: str
    label: str
    tensors: tuple[str, ...]
    others: tuple[str, ...]
    coarser: tuple[str, ...]
    dtypes: tuple[str, ...]
    sound_dtypes: tuple[str, ...]
    only_dtypes: tuple[str, ...]
    world_sizes: tuple[int, ...]
    sizes: str
    inputs: tuple[str, ...]
    size: int
    ranks_wrong: dict[str, tuple[int, ...]]
    trend: dict[str, str]
    growth: dict[str, Growth]
    ratios: dict[str, float]
    floors: dict[str, tuple[str, ...]]
    numbers: dict[str, float | str]
    gains: dict[str, float]
    sentence: str
    shape: str = ""


def pattern_of(verdicts: pd.DataFrame, results: pd.DataFrame) -> Pattern:
    """Of one variant's verdicts (at least one row) and results."""
    judged = verdicts[verdicts["label"] != NOT_MEASURED]
    judged = _main_first(judged if len(judged) else verdicts)
    label, wrong = _leading(judged)
    healthy = label == ROUNDING  # then `wrong` is the first problem's verdicts, and no mark of a fault is looked for
    shape = "" if healthy else shape_of(judged, wrong)
    sizes = "" if healthy or shape else sizes_of(judged, wrong)
    judged, results = wrong if healthy else _same_problem(judged, wrong), _same_problem(results, wrong)
    tensors = tuple(name for name in ALL_TENSORS if (wrong["tensor"] == name).any())
    dtypes = _by_precision(wrong["dtype"])
    size = int(wrong["world_size"].max())
    finest = dtypes[-1]
    numbers = results["tensor"].notna() & results["error_rel"].notna() & ~results["inputs"].isin(list(PROBES))
    rows = Rows(columns_of(results, _READ), np.flatnonzero(numbers))
    shown = _shown(rows, wrong)
    tried = _by_precision(pd.Series(rows["dtype"][np.isin(rows["inputs"], shown)])) or _by_precision(judged["dtype"])
    profile = {name: _profile(rows, name, finest, size, shown) for name in tensors if not healthy}
    first = wrong.loc[_most_telling(wrong)]
    return Pattern(
        variant=str(judged["variant"].iloc[0]),
        label=label,
        tensors=tensors,
        others=_others(judged, tensors),
        coarser=_coarser(judged, tensors),
        dtypes=dtypes,
        sound_dtypes=dtypes if healthy else _sound(judged[judged["dtype"].isin(tried)], tensors),
        only_dtypes=tried if tried != _by_precision(judged["dtype"]) or len(tried) == 1 else (),
        world_sizes=tuple(sorted(map(int, wrong["world_size"].unique()))),
        sizes=sizes,
        inputs=shown,
        size=size,
        ranks_wrong={name: tuple(map(int, found.index[found > RIGHT])) for name, found in profile.items()},
        trend={name: _trend(found[found > RIGHT]) for name, found in profile.items()},
        growth=_growth(rows, ALL_TENSORS if healthy else tensors, dtypes[0] if healthy else finest),
        ratios=_ratios(rows, finest, size) if not healthy else {},
        floors=_floors(wrong[wrong["tensor"].isin({*FORWARD} & {*tensors} or tensors)]),
        numbers={key: value for numbers in wrong["numbers"] for key, value in numbers.items()} | first["numbers"],
        gains={
            str(name): float(numbers["gain"])
            for name, numbers in zip(wrong["tensor"], wrong["numbers"], strict=True)
            if "gain" in numbers and abs(1 + float(numbers["gain"])) > STANDARD_ERRORS * float(numbers["gain_se"])
        },
        sentence=str(first["sentence"]),
        shape=shape,
    )


def _leading(judged: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """The label that leads, and its verdicts: what does not repeat before all, since numbers of one run say nothing of
    the next, bugs before the rest, the problem that comes first in the table before the shapes tried beside it, what
    Gaussian inputs show before what others do, what comes first in the data's flow before what is made of it, and the
    graver."""
    wrong = judged[~is_healthy(judged)]
    if wrong.empty:
        return ROUNDING, _same_problem(judged, judged)
    order = wrong.assign(
        _repeats=wrong["label"] != NONDETERMINISTIC,
        _mild=~wrong["label"].isin(BUGS),
        _swept=problem_numbers(judged).loc[wrong.index],
        _odd=[not is_simple(numbers) for numbers in wrong["numbers"]],
        _late=~wrong["tensor"].isin(FORWARD),
        _grave=wrong["label"].map(LABELS.index),
    )
    first = order.sort_values(["_repeats", "_mild", "_swept", "_odd", "_late", "_grave"], kind="stable").iloc[0]
    same = (order[["label", "_swept", "_odd"]] == first[["label", "_swept", "_odd"]]).all(axis=1)
    return str(first["label"]), wrong[same]


def _most_telling(wrong: pd.DataFrame) -> Any:
    """The verdict whose numbers are told: what differs most between runs, then what has the most ranks."""
    size = pd.Series([float(numbers.get("repeats_size", 0)) for numbers in wrong["numbers"]], wrong.index)
    return wrong.assign(_size=size).sort_values(["_size", "world_size"], kind="stable").index[-1]


def _main_first(judged: pd.DataFrame) -> pd.DataFrame:
    """The problem of most verdicts first, since real ranks write rows in no order."""
    numbers = problem_numbers(judged)
    return judged.loc[(-numbers.map(numbers.value_counts())).sort_values(kind="stable").index]


def _same_problem(rows: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """The rows of the problem of the first row of `like`."""
    same = np.ones(len(rows), dtype=bool)
    for name in PROBLEM:
        first = like[name].iloc[0]
        same &= rows[name].isna() if pd.isna(first) else rows[name].to_numpy() == first
    return rows[same]


def _sound(judged: pd.DataFrame, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """The dtypes in which the tensors merely round at every size."""
    mine = judged[judged["tensor"].isin(tensors)]
    return _by_precision(pd.Series(sorted(set(mine["dtype"]) - set(mine.loc[~is_healthy(mine), "dtype"]))))


def _others(judged: pd.DataFrame, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Further tensors with any bug; delta is out's."""
    bugs = set(judged.loc[judged["label"].isin(BUGS), "tensor"])
    return tuple(name for name in ALL_TENSORS if name in bugs and name not in tensors and name != "delta")


def _coarser(judged: pd.DataFrame, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Beside a bug, tensors without one that stop getting better at a coarser dtype: it may have made them so."""
    floors = judged.loc[(judged["label"] == PRECISION_FLOOR) & ~is_healthy(judged), "tensor"]
    left = {*floors} - {*tensors, *_others(judged, tensors), "delta"}
    return tuple(name for name in ALL_TENSORS if name in left) if judged["label"].isin(BUGS).any() else ()


def _floors(wrong: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    named = [(str(numbers["floor"]), dtype) for numbers, dtype in zip(wrong["numbers"], wrong["dtype"], strict=True)
             if "floor" in numbers]  # fmt: skip
    return {
        floor: _by_precision(pd.Series([dtype for other, dtype in named if other == floor]))
        for floor in _by_precision(pd.Series([floor for floor, _ in named], dtype=object))
    }


def _by_precision(dtypes: pd.Series) -> tuple[str, ...]:
    return tuple(sorted(set(map(str, dtypes)), key=lambda dtype: DTYPES[dtype].precision))


def _shown(rows: Rows, wrong: pd.DataFrame) -> tuple[str, ...]:
    """The distributions that show what is wrong, as far as the findings name them."""
    named = {name for numbers in wrong["numbers"] for name in str(numbers.get("inputs", "")).split(", ") if name}
    if (wrong["label"] == INVALID).any() and not any("unwaited" in numbers for numbers in wrong["numbers"]):
        named |= set(rows["inputs"][rows["nonfinite"] > 0])
    return tuple(sorted(named))


def _profile(rows: Rows, tensor: str, dtype: str, size: int, inputs: tuple[str, ...]) -> pd.Series:
    """Times single device's error on each rank, mean over seeds; infinite where values are not finite."""
    chosen = (rows["tensor"] == tensor) & (rows["dtype"] == dtype) & (rows["world_size"] == size)
    chosen &= (rows["rank"] != ALL_RANKS) & (np.isin(rows["inputs"], inputs) if inputs else True)
    mine = rows.where(chosen)
    return pd.Series(times_single_device(mine)).groupby(mine["rank"]).mean()


def _trend(errors: pd.Series) -> str:
    """Over at least three ranks: whether every step goes the same way."""
    if len(errors) < 3 or not np.isfinite(errors).all():
        return ""
    steps = np.diff(errors.to_numpy())
    return "rising" if (steps > 0).all() else "falling" if (steps < 0).all() else ""


def _growth(rows: Rows, tensors: tuple[str, ...], dtype: str) -> dict[str, Growth]:
    whole = rows.where((rows["rank"] == ALL_RANKS) & (rows["dtype"] == dtype) & (rows["inputs"] == "gaussian"))
    found = {}
    for name in tensors:
        mine = whole.where(whole["tensor"] == name)
        fit = fit_growth(zip(mine["world_size"], mine["error_rel"], strict=True))
        if isinstance(fit, Growth):
            found[name] = fit
    return found


def _ratios(rows: Rows, dtype: str, size: int) -> dict[str, float]:
    """Relative errors over all ranks in the finest wrong dtype: their ratios tell one cause from another."""
    mine = rows.where((rows["rank"] == ALL_RANKS) & (rows["dtype"] == dtype) & (rows["world_size"] == size))
    gaussian = mine["inputs"] == "gaussian"
    mine = mine.where(gaussian) if gaussian.any() else mine
    return {str(name): float(same["error_rel"].mean()) for (name,), same in sorted(mine.by("tensor").items())}
