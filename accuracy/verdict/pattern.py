"""Where is a variant wrong? The marks that a fault leaves over tensors, ranks, dtypes, inputs, problems and sizes.

In: the verdicts and the results of one variant. Out: fields of its `Facts`, for the label that leads.
"""

from collections.abc import Iterable
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import DTYPES
from accuracy.core.probes import PROBES
from accuracy.results.table import ALL_RANKS, ALL_TENSORS
from accuracy.verdict.evidence import INDEPENDENT, times_single_device
from accuracy.verdict.facts import FORWARD, leading
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
from accuracy.verdict.rows import Rows, columns_of, combinations
from accuracy.verdict.rule.factor import STANDARD_ERRORS

PROBLEM = fields.names(fields.PROBLEM)
GROUP = "heads/heads_kv"
RIGHT = 3.0  # a rank whose error is below 3 times single device's is right (the limit of `excess` for one rank)
_READ = ("tensor", "dtype", "world_size", "rank", "inputs", "error_rel", "single_device_rel", "floor_rel", "nonfinite")
Settings = tuple[tuple[str, ...], ...]


def pattern_of(verdicts: pd.DataFrame, results: pd.DataFrame) -> dict[str, Any]:
    """Fields of `Facts` out of one variant's verdicts (at least one row) and results."""
    judged = verdicts[verdicts["label"] != NOT_MEASURED]
    judged = _main_problem_first(judged if len(judged) else verdicts)
    leads, wrong = _leading(judged)
    first = wrong.loc[_most_telling(wrong)]
    numbers = {key: value for each in wrong["numbers"] for key, value in each.items()} | first["numbers"]
    found = {"leads": leads, "finding": str(first["finding"]), "numbers": numbers, "tensors": _tensors(wrong)}
    if leads == NOT_MEASURED:
        return found
    dtypes, size = _by_precision(wrong["dtype"]), int(wrong["world_size"].max())
    found |= {"dtypes": dtypes, "world_sizes": tuple(sorted(map(int, wrong["world_size"].unique()))), "size": size}
    rows = _rows(_same_problem(results, wrong))
    if leads == ROUNDING:  # then `wrong` is the first problem's verdicts, and no mark of a fault is looked for
        return found | {"growth": _growth(rows, ALL_TENSORS, dtypes[0])}
    settings, more = _settings(judged, wrong)
    found |= {"settings": settings, "more_problems": more} | ({} if settings else _sizes(judged, wrong))
    here = _same_problem(judged, wrong)
    tensors, shown = found["tensors"], _shown(rows, wrong)
    tried = _by_precision(rows["dtype"][np.isin(rows["inputs"], shown)]) or _by_precision(here["dtype"])
    profile = _profile(rows, tensors[0], dtypes[-1], size, shown)
    off = profile[profile > RIGHT]
    forward = wrong[wrong["tensor"].isin({*FORWARD} & {*tensors} or tensors)]
    return found | {
        "others": _bugs(verdicts if leads == NONDETERMINISTIC else here, tensors),
        "coarser": _coarser(here, tensors),
        "sound_dtypes": _sound(here[here["dtype"].isin(tried)], tensors),
        "only_dtypes": tried if tried != _by_precision(here["dtype"]) or len(tried) == 1 else (),
        "floors": _floors(forward),
        "inputs": shown,
        "ranks": tuple(map(int, off.index)),
        "trend": _trend(off),
        "growth": _growth(rows, tensors, dtypes[-1]),
        "ratios": _ratios(rows, dtypes[-1], size),
        "gain": _gain(wrong[wrong["tensor"] == leading(tensors)[0]]),
    }


def _tensors(verdicts: pd.DataFrame) -> tuple[str, ...]:
    return tuple(name for name in ALL_TENSORS if (verdicts["tensor"] == name).any())


def _leading(judged: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """The label that leads, and its verdicts. In this order come: what does not repeat, since numbers of one run say
    nothing of the next; bugs; the problem that comes first in the table before shapes tried beside it; what Gaussian
    inputs show; what comes first in the data's flow; the graver label."""
    wrong = judged[~is_healthy(judged)]
    if wrong.empty:
        return ROUNDING, _same_problem(judged, judged)
    order = wrong.assign(
        _repeats=wrong["label"] != NONDETERMINISTIC,
        _mild=~wrong["label"].isin(BUGS),
        _problem=problem_numbers(judged).loc[wrong.index],
        _odd=[not is_simple(numbers) for numbers in wrong["numbers"]],
        _late=~wrong["tensor"].isin(FORWARD),
        _grave=wrong["label"].map(LABELS.index),
    )
    first = order.sort_values(["_repeats", "_mild", "_problem", "_odd", "_late", "_grave"], kind="stable").iloc[0]
    same = (order[["label", "_problem", "_odd"]] == first[["label", "_problem", "_odd"]]).all(axis=1)
    return str(first["label"]), wrong[same]


def _most_telling(wrong: pd.DataFrame) -> Any:
    """The verdict whose numbers are reported: what differs most between runs, then what has the most ranks."""
    size = pd.Series([float(numbers.get("repeats_size", 0)) for numbers in wrong["numbers"]], wrong.index)
    return wrong.assign(_size=size).sort_values(["_size", "world_size"], kind="stable").index[-1]


def problem_numbers(rows: pd.DataFrame) -> "pd.Series[int]":
    """Of each row, the number of its problem in the order in which problems come."""
    return pd.Series(combinations(rows, PROBLEM), rows.index)


def _main_problem_first(judged: pd.DataFrame) -> pd.DataFrame:
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


def _rows(results: pd.DataFrame) -> Rows:
    numbers = results["tensor"].notna() & results["error_rel"].notna() & ~results["inputs"].isin(list(PROBES))
    return Rows(columns_of(results, _READ), np.flatnonzero(numbers))


def _sound(judged: pd.DataFrame, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """The dtypes in which the tensors merely round at every size."""
    same = judged[judged["tensor"].isin(tensors)]
    return _by_precision(set(same["dtype"]) - set(same.loc[~is_healthy(same), "dtype"]))


def _bugs(judged: pd.DataFrame, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Further tensors with any bug; delta is out's."""
    bugs = judged[judged["label"].isin(BUGS)]
    return tuple(name for name in _tensors(bugs) if name not in (*tensors, "delta"))


def _coarser(judged: pd.DataFrame, tensors: tuple[str, ...]) -> tuple[str, ...]:
    """Beside a bug, the tensors that only stop getting better."""
    floors = _tensors(judged[(judged["label"] == PRECISION_FLOOR) & ~is_healthy(judged)])
    left = {*floors} - {*tensors, *_bugs(judged, tensors), "delta"}
    return tuple(name for name in floors if name in left) if judged["label"].isin(BUGS).any() else ()


def _floors(wrong: pd.DataFrame) -> dict[str, tuple[str, ...]]:
    named: dict[str, list[str]] = {}
    for numbers, dtype in zip(wrong["numbers"], wrong["dtype"], strict=True):
        if "floor" in numbers:
            named.setdefault(str(numbers["floor"]), []).append(dtype)
    return {floor: _by_precision(named[floor]) for floor in _by_precision(named)}


def _by_precision(dtypes: Iterable[Any]) -> tuple[str, ...]:
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
    rows = rows.where(chosen)
    return pd.Series(times_single_device(rows)).groupby(rows["rank"]).mean()


def _trend(errors: pd.Series) -> str:
    """Over at least three ranks: whether every step goes the same way."""
    if len(errors) < 3 or not np.isfinite(errors).all():
        return ""
    steps = np.diff(errors.to_numpy())
    return "rising" if (steps > 0).all() else "falling" if (steps < 0).all() else ""


def _growth(rows: Rows, tensors: tuple[str, ...], dtype: str) -> dict[str, Growth]:
    rows = rows.where((rows["rank"] == ALL_RANKS) & (rows["dtype"] == dtype) & (rows["inputs"] == INDEPENDENT))
    found = {}
    for name in tensors:
        same = rows.where(rows["tensor"] == name)
        fit = fit_growth(zip(same["world_size"], same["error_rel"], strict=True))
        if isinstance(fit, Growth):
            found[name] = fit
    return found


def _ratios(rows: Rows, dtype: str, size: int) -> tuple[float, ...]:
    """Errors of dq, dk and dv over the least of them, which tell one cause from another; none where one is missing."""
    rows = rows.where((rows["rank"] == ALL_RANKS) & (rows["dtype"] == dtype) & (rows["world_size"] == size))
    gaussian = rows["inputs"] == INDEPENDENT
    rows = rows.where(gaussian) if gaussian.any() else rows
    errors = {str(name): float(same["error_rel"].mean()) for (name,), same in rows.by("tensor").items()}
    found = [errors.get(name, 0.0) for name in ("dq", "dk", "dv")]
    return tuple(each / min(found) for each in found) if all(0 < each < float("inf") for each in found) else ()


def _gain(wrong: pd.DataFrame) -> float | None:
    """The last certain gain of a tensor."""
    found = [numbers for numbers in wrong["numbers"] if "gain" in numbers]
    certain = [each["gain"] for each in found if abs(1 + each["gain"]) > STANDARD_ERRORS * each["gain_se"]]
    return float(certain[-1]) if certain else None


def _settings(judged: pd.DataFrame, wrong: pd.DataFrame) -> tuple[Settings, int]:
    """What the wrong problems have and no other has, where the first problem of the table is right, and in how many
    more problems a tensor is wrong if nothing tells them all from the right ones."""
    bugs = judged[judged["label"] == wrong["label"].iloc[0]]
    numbers = problem_numbers(judged)
    bad = numbers.isin(numbers.loc[bugs.index])
    if bad.iloc[0]:
        return (), 0
    if sizes := _sizes_alone(judged, bugs, bad):
        return (tuple(f"world_size={size}" for size in sizes),), 0
    grouped = judged.assign(**{GROUP: judged["heads"] // judged["heads_kv"]})
    found = _alone(judged, bad) or _alone_under_masks(judged, bad) or _alone(grouped, bad, (GROUP,))
    each = judged[bad].drop_duplicates(list(PROBLEM))
    names = ("seqlen", "heads", "heads_kv", "head_dim", "mask")
    return (found, 0) if found else (tuple((f"{name}={each[name].iloc[0]}",) for name in names), len(each) - 1)


def _alone_under_masks(judged: pd.DataFrame, bad: "pd.Series[bool]") -> Settings:
    """What distinguishes the wrong problems beside right ones under the same masks."""
    masks = {*judged.loc[bad, "mask"]}
    same = judged["mask"].isin(masks)
    found = _alone(judged[same], bad[same]) if not same.all() else ()
    return (tuple(f"mask={mask}" for mask in sorted(masks)), *found) if found else ()


def _alone(judged: pd.DataFrame, bad: "pd.Series[bool]", names: tuple[str, ...] = PROBLEM) -> Settings:
    """What all wrong problems have of what no right one has."""
    own = {name: _sorted({*judged.loc[bad, name]} - {*judged.loc[~bad, name]}) for name in names}
    alone = {name: values for name, values in own.items() if values and name not in ("softmax_scale", "seqlen_q")}
    alone = {name: values for name, values in alone.items() if set(judged.loc[bad, name]) == set(values)}
    groups = [
        [f"{name}={value}" for value in values] for name, values in (alone or _covering(judged[bad], own)).items()
    ]
    if alone or not groups:
        return tuple(map(tuple, groups))
    return (tuple(each for group in groups for each in group),)  # each wrong problem has one of them


def _covering(bad: pd.DataFrame, own: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The smallest set of settings, masks first, that covers every wrong problem; empty if none does."""
    found: dict[str, list[Any]] = {}
    for name in ("mask", "softcap", "batch", "head_dim", "heads_kv", "heads", "seqlen"):
        here = bad[name].isin(own.get(name, ()))
        if here.any():
            found[name] = _sorted({*bad.loc[here, name]})
            bad = bad[~here]
    return {} if len(bad) else found


def _sorted(values: set[Any]) -> list[Any]:
    """Numbers by size, before texts."""
    return sorted(values, key=lambda x: (0, x, "") if isinstance(x, Number) else (1, 0, str(x)))


def _sizes(judged: pd.DataFrame, wrong: pd.DataFrame) -> dict[str, tuple[int, ...]]:
    """The numbers of ranks that are wrong, and those that are right in a problem that is wrong with others."""
    judged = judged[judged["tensor"].isin(wrong["tensor"])]
    bugs = judged[judged["label"] == wrong["label"].iloc[0]]
    numbers = problem_numbers(judged)
    same = numbers.isin(numbers.loc[bugs.index]) & is_healthy(judged)
    bad = {*bugs["world_size"]}
    found = {"sizes_wrong": bad, "sizes_right": {*judged.loc[same, "world_size"]} - bad}
    return {name: tuple(sorted(map(int, sizes))) for name, sizes in found.items()}


def _sizes_alone(judged: pd.DataFrame, bugs: pd.DataFrame, bad: "pd.Series[bool]") -> list[int]:
    """The numbers of ranks that are wrong, where the same problems are right with other numbers, and no problem is
    right with these."""
    wrong, healthy = {*bugs["world_size"]}, judged[is_healthy(judged) & judged["tensor"].isin(bugs["tensor"])]
    elsewhere = {*healthy.loc[bad.loc[healthy.index], "world_size"]} - wrong
    return sorted(map(int, wrong)) if len(elsewhere - {1}) and not wrong & {*healthy["world_size"]} else []
