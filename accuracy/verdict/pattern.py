"""Where is a variant wrong? The marks that a fault leaves over tensors, ranks, dtypes, inputs, problems and sizes.

In: the verdicts and the results of one variant. Out: fields of its `Facts`, for the label that leads.
"""

from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import DTYPES, PROBES
from accuracy.results.table import ALL_RANKS, ALL_TENSORS
from accuracy.verdict import growth, label, precision
from accuracy.verdict.evidence import INDEPENDENT, times_single_device
from accuracy.verdict.facts import FORWARD, Cause, leading
from accuracy.verdict.inside import below_a_third, is_healthy
from accuracy.verdict.precision import by_precision
from accuracy.verdict.rows import combinations
from accuracy.verdict.rule.factor import STANDARD_ERRORS

PROBLEM = fields.names(fields.PROBLEM)
GROUP = "heads/heads_kv"
RIGHT = 3.0  # a rank whose error is below 3 times single device's is right (the limit of `excess` for one rank)
METRICS = ("error_rel", "single_device_rel", "floor_rel", "nonfinite")
PADDED = ",padding=end"  # of one rank it changes nothing
MOST_KINDS = 2  # of settings that cover the wrong problems: more are marks of the grid
Settings = tuple[tuple[str, ...], ...]


def pattern_of(verdicts: pd.DataFrame, results: pd.DataFrame, known: Mapping[str, Cause]) -> dict[str, Any]:
    """Return fields of `Facts` from one variant's verdicts (at least one row), results, and causes by tensor."""
    judged = verdicts[verdicts["label"] != label.NOT_MEASURED]
    judged = _by_problem(judged if len(judged) else verdicts)
    wrong = _leading(judged)
    leads = label.ROUNDING if wrong.empty else str(wrong["label"].iloc[0])
    wrong = judged[judged["_problem"] == 0] if wrong.empty else wrong
    changes = [float(numbers.get("repeats_size", 0)) for numbers in wrong["numbers"]]
    first = wrong.assign(_size=changes).sort_values(["_size", "world_size"], kind="stable").iloc[-1]  # most telling
    numbers = {key: value for each in wrong["numbers"] for key, value in each.items()} | first["numbers"]
    tensors = _tensors(wrong)
    found = {"leads": leads, "finding": str(first["finding"]), "numbers": numbers, "tensors": tensors}
    found["of_dtype"] = str(first["dtype"])
    if leads == label.NOT_MEASURED:
        return found
    at = judged[judged["world_size"].isin(wrong["world_size"])]
    there, size = at[at["_problem"] == wrong["_problem"].iloc[0]], int(wrong["world_size"].max())
    dtypes = precision.wrong_in(wrong[wrong["tensor"].isin(leading(tensors))], there)
    every = _numbers(results, wrong.iloc[0])
    rows = every[~every["inputs"].isin(list(PROBES))]
    found |= {"dtypes": dtypes, "world_sizes": _integers(wrong["world_size"])}
    if leads == label.ROUNDING:  # no mark of a fault is looked for
        return found | {"growth": growth.growths(rows, ALL_TENSORS, dtypes[0])}
    here = judged[judged["_problem"] == wrong["_problem"].iloc[0]]
    shown = _shown(rows, wrong)
    conditions: dict[str, Any] = {}
    if leads != label.NONDETERMINISTIC:  # what differs from run to run may have been right by chance
        conditions = _conditions(judged, wrong, _measured_on(results, judged, shown))
    at_sizes = every[every["world_size"].isin(wrong["world_size"])]
    if settings := conditions.get("settings"):  # other problems that have these, too
        there, at_sizes = (_having(each, settings, wrong) for each in (judged, results[results["error_rel"].notna()]))
    showing = at_sizes[at_sizes["tensor"].isin(tensors)]
    kinds = precision.asked(wrong, shown, showing, dtypes)
    showing = showing[showing["inputs"].isin(kinds)]
    off = _profile(rows, tensors[0], dtypes[-1], size, shown)
    forward = wrong[wrong["tensor"].isin({*FORWARD} & {*tensors} or tensors)]
    floor_of = [(dtype, each.get("floor")) for dtype, each in zip(forward["dtype"], forward["numbers"], strict=True)]
    bugs, every_bug = (each[each["label"].isin(label.BUGS)] for each in (here, verdicts))
    elsewhere = every_bug[every_bug["tensor"].isin(tensors)]  # without a condition, right means right in every problem
    elsewhere = elsewhere.head(0) if settings else elsewhere
    run, there = by_precision(judged["dtype"]), there[there["tensor"].isin(tensors)]
    others_here, floors = _tensors_but(bugs, *tensors), (here["label"] == label.PRECISION_FLOOR) & ~here["_healthy"]
    return found | conditions | {
        "others": _tensors_but(every_bug, *tensors) if leads == label.NONDETERMINISTIC else others_here,
        "coarser": _tensors_but(here[floors], *tensors, *others_here) if len(bugs) else (),
        **precision.reach(leads, dtypes, run, there, showing, elsewhere, precision.groups_of(tensors, known)),
        "otherwise": precision.otherwise(rows, known, bugs, shown),
        "floors": {floor: by_precision(dtype for dtype, x in floor_of if x == floor)
                   for floor in by_precision(x for _, x in floor_of if x)},
        "inputs": shown or tuple(sorted(kinds & {*PROBES})),
        "ranks": tuple(map(int, off.index)),
        "trend": growth.trend(off),
        "growth": growth.growths(rows, tensors, dtypes[-1]),
        "ratios": growth.ratios(rows, dtypes[-1], size),
        "gain": _gain(wrong[wrong["tensor"] == leading(tensors)[0]]),
    }  # fmt: skip


def _having(rows: pd.DataFrame, settings: Settings, wrong: pd.DataFrame) -> pd.DataFrame:
    """The rows of as many ranks as are wrong, of problems that have a setting of each group."""
    values = {**rows, GROUP: rows["heads"] // rows["heads_kv"]}
    if (wrong["world_size"] == 1).all():
        values["mask"] = rows["mask"].str.replace(PADDED, "")
    chosen = rows["world_size"].isin(wrong["world_size"])
    for group in settings:
        of_group = [values[name].astype(str) == value for name, value in (each.split("=", 1) for each in group)]
        chosen &= pd.concat(of_group, axis=1).any(axis=1)
    return rows[chosen]


def _by_problem(judged: pd.DataFrame) -> pd.DataFrame:
    """The problem of most verdicts first and numbered 0, since real ranks write rows in no order."""
    numbers = pd.Series(combinations(judged, PROBLEM), judged.index)
    judged = judged.loc[(-numbers.map(numbers.value_counts())).sort_values(kind="stable").index]
    return judged.assign(_problem=combinations(judged, PROBLEM), _healthy=is_healthy(judged))


OTHER_ORDER = "other_order"
"""The finding of bits that change from run to run within rounding."""


def _leading(judged: pd.DataFrame) -> pd.DataFrame:
    """The verdicts of the label that leads; none where all is healthy. In this order come: what does not repeat by more
    than rounding, since numbers of one run say nothing of the next; bugs; the main problem before shapes tried beside
    it; what Gaussian inputs show; what comes first in the data's flow; the graver label. Bits that differ as sums in
    another order do (atomic adds) come behind every bug."""
    wrong = judged[~judged["_healthy"]]
    if wrong.empty:
        return wrong
    order = wrong.assign(
        _repeats=(wrong["label"] != label.NONDETERMINISTIC) | (wrong["finding"] == OTHER_ORDER),
        _mild=~wrong["label"].isin(label.BUGS),
        _odd=[not label.is_simple(numbers) for numbers in wrong["numbers"]],
        _late=~wrong["tensor"].isin(FORWARD),
        _grave=wrong["label"].map(label.LABELS.index),
    )
    first = order.sort_values(["_repeats", "_mild", "_problem", "_odd", "_late", "_grave"], kind="stable").iloc[0]
    same = ["label", "_repeats", "_problem", "_odd"]
    return wrong[(order[same] == first[same]).all(axis=1)]


def _numbers(results: pd.DataFrame, problem: pd.Series) -> pd.DataFrame:
    """The rows with numbers of one problem."""
    chosen = results["tensor"].notna() & results["error_rel"].notna()
    for name in PROBLEM:
        chosen &= results[name].isna() if pd.isna(problem[name]) else results[name] == problem[name]
    rows = results.loc[chosen, ["tensor", "dtype", "world_size", "rank", "inputs", *METRICS]]
    return rows.astype(dict.fromkeys(METRICS, "float64"))


def _tensors(verdicts: pd.DataFrame) -> tuple[str, ...]:
    return tuple(name for name in ALL_TENSORS if (verdicts["tensor"] == name).any())


def _integers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(sorted(map(int, {*values})))


def _tensors_but(verdicts: pd.DataFrame, *named: str) -> tuple[str, ...]:
    """The tensors of some verdicts, but for those named and delta, which is out's."""
    return tuple(name for name in _tensors(verdicts) if name not in (*named, "delta"))


def _shown(rows: pd.DataFrame, wrong: pd.DataFrame) -> tuple[str, ...]:
    """The distributions that show what is wrong, as far as the findings name them."""
    named = {name for numbers in wrong["numbers"] for name in str(numbers.get("inputs", "")).split(", ") if name}
    if (wrong["label"] == label.INVALID).any() and not any("unwaited" in numbers for numbers in wrong["numbers"]):
        named |= {*rows.loc[rows["nonfinite"] > 0, "inputs"]}
    return tuple(sorted(named))


def _measured_on(results: pd.DataFrame, judged: pd.DataFrame, shown: tuple[str, ...]) -> "pd.Series[bool]":
    """Which verdicts are of problems that were measured on inputs which show what is wrong; all, where Gaussian ones
    do, or none is named."""
    if not shown or INDEPENDENT in shown:
        return pd.Series(True, judged.index)
    asked = results[results["inputs"].isin(shown) & results["error_rel"].notna()]
    numbers = combinations(pd.concat([judged[list(PROBLEM)], asked[list(PROBLEM)]]), PROBLEM)
    return pd.Series(np.isin(numbers[: len(judged)], numbers[len(judged) :]), judged.index)


def _profile(rows: pd.DataFrame, tensor: str, dtype: str, size: int, inputs: tuple[str, ...]) -> pd.Series:
    """The wrong ranks' errors in times single device's, mean over seeds; infinite where values are not finite."""
    rows = rows[(rows["tensor"] == tensor) & (rows["dtype"] == dtype) & (rows["world_size"] == size)]
    rows = rows[(rows["rank"] != ALL_RANKS) & (rows["inputs"].isin(inputs) if inputs else True)]
    times = times_single_device(rows).groupby(rows["rank"]).mean()
    return times[times > RIGHT]


def _gain(wrong: pd.DataFrame) -> float | None:
    """The last certain gain of a tensor."""
    found = [each for each in wrong["numbers"] if "gain" in each]
    certain = [each["gain"] for each in found if abs(1 + each["gain"]) > STANDARD_ERRORS * each["gain_se"]]
    return float(certain[-1]) if certain else None


def _conditions(judged: pd.DataFrame, wrong: pd.DataFrame, asked: "pd.Series[bool]") -> dict[str, Any]:
    """The numbers of ranks that are wrong and right in the wrong problems, and what tells problems apart. Where the
    main one is wrong: the settings that all right ones and no wrong one have. Where it is right: those that all wrong
    ones and no right one have, or how many are wrong and measured, and one of them.

    Right is a problem that was measured as the wrong ones were, asked: on inputs that show it, in a dtype and on a
    number of ranks that are wrong (in 16 bits, where a few rows' fault is below rounding, only if no finer one is),
    and in which each of the wrong tensors is healthy there; one that is healthy by a fact alone, as float32 inside
    is, in 16 bits, or for having too few rows for a certain factor, has a tensor with less than a third of the
    bug's error. One token has weight 1 whatever is done to it: it is none."""
    bugs = judged[judged["label"] == wrong["label"].iloc[0]]
    bad = judged["_problem"].isin(bugs["_problem"])
    main_is_wrong = bool(bad.iloc[0])
    of_tensors = judged["tensor"].isin(wrong["tensor"])
    of_bugs = bugs[bugs["tensor"].isin(wrong["tensor"])] if main_is_wrong else bugs
    same = judged["_problem"].isin(of_bugs["_problem"]) & of_tensors & judged["dtype"].isin(of_bugs["dtype"])
    sizes_wrong = {*of_bugs["world_size"]}
    sizes_right = {*judged.loc[same & judged["_healthy"], "world_size"]} - sizes_wrong
    at_sizes = {"sizes_wrong": _integers(sizes_wrong), "sizes_right": _integers(sizes_right)}
    if sizes := () if main_is_wrong else _sizes_alone(judged, bugs, bad):
        return {"settings": (tuple(f"world_size={size}" for size in sizes),)}
    dtypes = {name for name in bugs["dtype"] if DTYPES[name].bytes > 2} or {*bugs["dtype"]}
    alike = asked & of_tensors & judged["dtype"].isin(dtypes) & judged["world_size"].isin(bugs["world_size"])
    clear = judged["_problem"].isin(judged.loc[of_tensors & below_a_third(judged, bugs), "_problem"])
    few_digits = all(DTYPES[name].bytes == 2 for name in dtypes)
    unsure = (judged["label"] != label.ROUNDING) | few_digits | bool((bugs["rule"] == "factor").all())
    only_a_fact = judged["_healthy"] & unsure & ~clear
    ill = judged["_problem"].isin(judged.loc[of_tensors & (~judged["_healthy"] | only_a_fact), "_problem"])
    right = judged["_problem"].isin(judged.loc[alike, "_problem"]) & ~ill & ~bad & (judged["seqlen"] > 1)
    few = judged["seqlen_q"] < judged["seqlen"]
    if not (few & bad).any():  # a few queries of many keys may hide what more would show
        right &= ~few
    judged, bad = judged[bad | right], bad[bad | right]
    if bad.all():
        return at_sizes
    if (judged["world_size"] == 1).all():
        judged = judged.assign(mask=judged["mask"].str.replace(PADDED, ""))
    judged = judged.assign(**{GROUP: judged["heads"] // judged["heads_kv"]})
    if main_is_wrong:
        groups = _alone(judged, ~bad, (*PROBLEM, GROUP))
        return at_sizes | {"settings_right": groups[0] if len(groups) == 1 else ()}
    masks = judged["mask"].isin(judged.loc[bad, "mask"])
    found = _alone(judged, bad)
    if not found and not masks.all() and (found := _alone(judged[masks], bad[masks])):
        found = (tuple(f"mask={mask}" for mask in sorted({*judged.loc[bad, "mask"]})), *found)
    found = found or _alone(judged, bad, (GROUP,))
    if found:
        return at_sizes | {"settings": found}
    each = judged[bad].drop_duplicates("_problem")
    example = tuple(f"{name}={each[name].iloc[0]}" for name in ("seqlen", "heads", "heads_kv", "head_dim", "mask"))
    return at_sizes | {"wrong_problems": len(each), "problems": judged["_problem"].nunique(), "example": example}


def _sizes_alone(judged: pd.DataFrame, bugs: pd.DataFrame, bad: "pd.Series[bool]") -> tuple[int, ...]:
    """The numbers of ranks that are wrong, where the same problems are right with other numbers, and no problem is
    right with these."""
    wrong = {*bugs["world_size"]}
    healthy = judged["_healthy"] & judged["tensor"].isin(bugs["tensor"])
    elsewhere = {*judged.loc[healthy & bad, "world_size"]} - wrong - {1}
    return _integers(wrong) if elsewhere and not wrong & {*judged.loc[healthy, "world_size"]} else ()


def _alone(judged: pd.DataFrame, bad: "pd.Series[bool]", names: tuple[str, ...] = PROBLEM) -> Settings:
    """Settings that all wrong problems and no right one have, a group of alternatives each; else one group, of which
    each wrong problem has a setting. A number between those of right problems is a mark of the grid: it is named only
    where nothing else tells wrong problems from right ones. So is a scale, and what varies over wrong problems that
    share another setting."""
    right = {name: {*judged.loc[~bad, name]} for name in names}
    own = {name: {*judged.loc[bad, name]} - right[name] for name in names}
    marks = {name: values for name, values in own.items() if not _between(values, right[name])}
    for chosen in (marks, own):
        every = {name: values for name, values in chosen.items() if values == {*judged.loc[bad, name]}}
        simple = {name: values for name, values in every.items() if name not in ("softmax_scale", "seqlen_q")}
        single = {name: values for name, values in simple.items() if len(values) == 1}
        if len(simple) > MOST_KINDS and not single:
            return ()  # marks of the grid
        told = single or simple
        groups = [_named(name, values) for name, values in (told or _covering(judged[bad], chosen) or every).items()]
        if groups:
            return tuple(groups) if told or every else (tuple(each for group in groups for each in group),)
    return ()


def _between(values: set[Any], right: set[Any]) -> bool:
    """Whether each value is a number with a smaller and a larger one among the right ones."""
    numbers = [each for each in right if isinstance(each, (int, float))]
    return all(
        isinstance(x, (int, float)) and any(y < x for y in numbers) and any(y > x for y in numbers) for x in values
    )


def _covering(bad: pd.DataFrame, own: dict[str, set[Any]]) -> dict[str, set[Any]]:
    """Settings of at most two kinds, masks first, that cover every wrong problem; empty if none do."""
    found = {}
    for name in ("mask", "softcap", "batch", "head_dim", "heads_kv", "heads", "seqlen"):
        here = bad[name].isin(own.get(name, ()))
        if here.any():
            found[name] = {*bad.loc[here, name]}
            bad = bad[~here]
    return {} if len(bad) or len(found) > MOST_KINDS else found


def _named(name: str, values: set[Any]) -> tuple[str, ...]:
    """`name=value` of each value, numbers by size before texts."""
    order = sorted(values, key=lambda x: (0, x, "") if isinstance(x, Number) else (1, 0, str(x)))
    return tuple(f"{name}={value}" for value in order)
