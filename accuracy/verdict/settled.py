"""What proven causes change in verdicts: the labels, before the story is told.

In: the verdicts of one variant, and its causes by tensor. Out: the verdicts with other labels.
"""

from collections.abc import Iterator

import pandas as pd

from accuracy.core import fields
from accuracy.results.hypothesis import FOLLOWS
from accuracy.verdict.floor import WITHIN
from accuracy.verdict.label import BIASED, BUGS, EXCESS_ROUNDING, LABELS, LOGIC, PRECISION_FLOOR
from accuracy.verdict.pattern import FORWARD
from accuracy.verdict.proof import Cause

CASE = (*fields.names(fields.PROBLEM), "dtype", "world_size")


def with_proofs(verdicts: pd.DataFrame, known: dict[str, Cause]) -> pd.DataFrame:
    """Where something else than a cast is proven to make an error, it is no rounding, however large or small it is. A
    gradient that is right for the returned out and lse is as bad as these."""
    proven = {name: each for name, each in known.items() if each.proven}
    following = {name for name, each in proven.items() if FOLLOWS in each.names}
    made = {(name, each.dtype) for name, each in proven.items() if not each.is_cast and name not in following}
    doubtful = verdicts["label"].isin((PRECISION_FLOOR, EXCESS_ROUNDING, BIASED))
    wrong = pd.Series([key in made for key in zip(verdicts["tensor"], verdicts["dtype"], strict=True)], verdicts.index)
    verdicts = verdicts.assign(label=verdicts["label"].mask(doubtful & wrong, LOGIC))
    return _as_the_forward(verdicts, following) if following else verdicts


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
