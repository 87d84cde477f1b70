"""With which problems, and at how many ranks, is it wrong? In words.

In: verdicts of one variant, the first problem's first, and those that are wrong.
"""

from numbers import Number
from typing import Any

import pandas as pd

from accuracy.core import fields
from accuracy.verdict.inside import is_healthy
from accuracy.verdict.rows import combinations

PROBLEM = fields.names(fields.PROBLEM)
GROUP = "heads/heads_kv"


def problem_numbers(rows: pd.DataFrame) -> "pd.Series[int]":
    """Of each row, the number of its problem in the order in which problems come."""
    return pd.Series(combinations(rows, PROBLEM), rows.index)


def shape_of(judged: pd.DataFrame, wrong: pd.DataFrame) -> str:
    """What the problems that are wrong have and no other has, where the first problem of the table is right."""
    bugs = judged[judged["label"] == wrong["label"].iloc[0]]
    numbers = problem_numbers(judged)
    bad = numbers.isin(numbers.loc[bugs.index])
    if bad.iloc[0]:
        return ""
    if sizes := _sizes_alone(judged, bugs, bad):
        return f"only at {' and '.join(map(str, sizes))} ranks"
    grouped = judged.assign(**{GROUP: judged["heads"] // judged["heads_kv"]})
    alone = _alone(judged, bad) or _alone_under_its_masks(judged, bad) or _alone(grouped, bad, (GROUP,))
    return f"only with {alone or _first(judged, bad)}"


def _first(judged: pd.DataFrame, bad: "pd.Series[bool]") -> str:
    """Other problems have each of these, none has all."""
    each = judged[bad].drop_duplicates(list(PROBLEM))
    first = each.iloc[0]
    said = ", ".join(f"{name}={first[name]}" for name in ("seqlen", "heads", "heads_kv", "head_dim", "mask"))
    return f"{said}{f' and in {len(each) - 1} more' if len(each) > 1 else ''}"


def _alone_under_its_masks(judged: pd.DataFrame, bad: "pd.Series[bool]") -> str:
    """The same beside problems under the same masks."""
    masks = {*judged.loc[bad, "mask"]}
    same = judged["mask"].isin(masks)
    found = _alone(judged[same], bad[same]) if not same.all() else ""
    return f"mask={' or '.join(sorted(masks))} and {found}" if found else ""


def _alone(judged: pd.DataFrame, bad: "pd.Series[bool]", names: tuple[str, ...] = PROBLEM) -> str:
    """What all wrong problems have of what no right one has."""
    own = {name: _sorted({*judged.loc[bad, name]} - {*judged.loc[~bad, name]}) for name in names}
    alone = {name: values for name, values in own.items() if values and name not in ("softmax_scale", "seqlen_q")}
    alone = {name: values for name, values in alone.items() if set(judged.loc[bad, name]) == set(values)}
    several = alone or _covering(judged[bad], own)
    each = (" or ".join(f"{name}={value}" for value in values) for name, values in several.items())
    return (" and " if alone else " or ").join(each)  # what all wrong problems have cannot be told apart


def _covering(bad: pd.DataFrame, own: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Of what no other problem has, features first, as much as every wrong problem has something of; else nothing."""
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


def sizes_of(judged: pd.DataFrame, wrong: pd.DataFrame) -> str:
    """At how many ranks it is wrong: from so many on, or, where a larger number of ranks is right in a problem that is
    wrong with others, at each that was tried."""
    bugs = judged[(judged["label"] == wrong["label"].iloc[0]) & judged["tensor"].isin(wrong["tensor"])]
    numbers, bad = problem_numbers(judged), {*bugs["world_size"]}
    same = judged[numbers.isin(numbers.loc[bugs.index]) & judged["tensor"].isin(wrong["tensor"]) & is_healthy(judged)]
    right = {size for size in {*same["world_size"]} - bad if size > min(bad)}
    alone = {1} & {*same["world_size"]} - bad
    if not right:
        return f"with {min(bad)} ranks or more, not with one" if alone else ""
    bad_sizes, right_sizes = (", ".join(map(str, sorted(each))) for each in (bad, right | alone))
    return f"at {bad_sizes} ranks (not at {right_sizes})"


def _sizes_alone(judged: pd.DataFrame, bugs: pd.DataFrame, bad: "pd.Series[bool]") -> list[int]:
    """The numbers of ranks that are wrong, where the same problems are right with other numbers, and no problem is
    right with these."""
    wrong, healthy = {*bugs["world_size"]}, judged[is_healthy(judged) & judged["tensor"].isin(bugs["tensor"])]
    elsewhere = {*healthy.loc[bad.loc[healthy.index], "world_size"]} - wrong
    return sorted(map(int, wrong)) if len(elsewhere - {1}) and not wrong & {*healthy["world_size"]} else []
