"""What proven causes change in verdicts: the labels, before the story is told.

In: the verdicts of one variant, and its causes by tensor. Out: the verdicts with other labels.
"""

from collections.abc import Iterator

import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import FORMATS
from accuracy.results.hypothesis import FOLLOWS
from accuracy.verdict.floor import LEVEL, WITHIN, WITHIN_EXACT
from accuracy.verdict.inside import is_healthy
from accuracy.verdict.label import BIASED, BUGS, EXCESS_ROUNDING, LABELS, LOGIC, PRECISION_FLOOR, ROUNDING
from accuracy.verdict.pattern import FORWARD
from accuracy.verdict.proof import Cause

BY_SIZE = ("ladder", "beyond", "excess")
"""Rules that judge an error by its size."""
CASE = (*fields.names(fields.PROBLEM), "dtype", "world_size")


def with_proofs(verdicts: pd.DataFrame, known: dict[str, Cause]) -> pd.DataFrame:
    """Where something else than a cast is proven to make an error, it is no rounding, however large or small it is. A
    gradient that is right for the returned out and lse is as bad as these."""
    proven = {name: each for name, each in known.items() if each.proven}
    verdicts = _as_casts(verdicts, {name: each for name, each in proven.items() if each.is_cast})
    following = {name for name, each in proven.items() if FOLLOWS in each.names}
    following |= {"delta"} if following else set()
    made = {(name, each.dtype) for name, each in proven.items() if not each.is_cast and name not in following}
    doubtful = verdicts["label"].isin((PRECISION_FLOOR, EXCESS_ROUNDING, BIASED))
    wrong = pd.Series([key in made for key in zip(verdicts["tensor"], verdicts["dtype"], strict=True)], verdicts.index)
    verdicts = verdicts.assign(label=verdicts["label"].mask(doubtful & wrong, LOGIC))
    return _as_the_forward(verdicts, following) if following else verdicts


def _as_casts(verdicts: pd.DataFrame, casts: dict[str, Cause]) -> pd.DataFrame:
    """A tensor that a cast is proven for is only as good as its format, on whatever ranks and elements it strikes, and
    merely rounds in a dtype no finer; but for errors that no sum of such roundings makes, and for other rules' bugs."""
    verdicts = verdicts.copy()
    for tensor, cause in casts.items():
        form = next((FORMATS[word] for word in cause.clauses[0].split() if word in FORMATS), None)
        if form is None:
            continue
        names = (tensor, "delta") if tensor == "out" else (tensor,)
        floor = (verdicts["label"] == PRECISION_FLOOR) & ~is_healthy(verdicts)
        mine = verdicts["tensor"].isin(names) & verdicts["rule"].isin(BY_SIZE) & (floor | (verdicts["label"] == LOGIC))
        mine &= verdicts["error_rel"] <= WITHIN_EXACT * LEVEL * form.unit_roundoff
        finer = verdicts["dtype"].isin([each.name for each in FORMATS.values() if each.precision > form.precision])
        verdicts["label"] = verdicts["label"].mask(mine, ROUNDING).mask(mine & finer, PRECISION_FLOOR)
        floors = [{**numbers, "floor": form.name} for numbers in verdicts.loc[mine & finer, "numbers"]]
        verdicts.loc[mine & finer, "numbers"] = pd.Series(floors, verdicts.index[mine & finer], dtype=object)
    return verdicts


def _as_the_forward(verdicts: pd.DataFrame, following: set[str]) -> pd.DataFrame:
    """Those tensors with the label of out or lse in their case: a bug where that is one; where it is none, no bug of
    their own, unless the error is more than `WITHIN` times as large."""
    changed = verdicts.copy()
    for _, case in verdicts.groupby(list(CASE), dropna=False, sort=False):
        forward = case[case["tensor"].isin(FORWARD)]
        if forward.empty:
            continue
        worst = forward.iloc[int(forward["label"].map(LABELS.index).argmin())]
        for place, row in _rows_of(case, following):
            small = row["error_rel"] <= WITHIN * forward["error_rel"].max()
            if worst["label"] in BUGS and row["label"] in (PRECISION_FLOOR, EXCESS_ROUNDING, BIASED):
                changed.at[place, "label"] = LOGIC
            elif worst["label"] not in BUGS and row["label"] == LOGIC and small:
                changed.loc[[place], ["label", "sentence"]] = worst[["label", "sentence"]].to_numpy()
                changed.at[place, "numbers"] = worst["numbers"]
    return changed


def _rows_of(case: pd.DataFrame, tensors: set[str]) -> Iterator[tuple[object, pd.Series]]:
    return case[case["tensor"].isin(tensors)].iterrows()
