"""In which dtypes is a variant wrong, in which is it right, and in which would rounding hide the fault?

In: the verdicts and results of one variant, as far as they can show its fault. Out: fields of its `Facts`. Right is a
dtype that was measured, is healthy, and has clearly less error than the fault: what is as large may be the fault, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from accuracy.core.dtype import DTYPES, PROBES
from accuracy.results.table import ALL_RANKS
from accuracy.verdict import label
from accuracy.verdict.evidence import INDEPENDENT, times_single_device
from accuracy.verdict.facts import Cause, leading
from accuracy.verdict.inside import CLEARLY_LESS

INFERRED = "also_finer"
"""The finding of a dtype that merely rounds, made of what a finer one shows."""
SMALL_FACTOR = "factor"
"""The finding of a certain factor; one that is less than a unit roundoff is labelled biased."""
Groups = Sequence[set[str]]
Pairs = frozenset[tuple[str, str]]


def by_precision(dtypes: Iterable[Any]) -> tuple[str, ...]:
    """Return distinct dtypes, the coarsest first."""
    return tuple(sorted(set(map(str, dtypes)), key=lambda dtype: (DTYPES[dtype].precision, dtype)))


def _is_seen(bugs: pd.DataFrame) -> "pd.Series[bool]":
    """Which verdicts show a fault themselves: not those that were inferred from a finer dtype, with more than 3 times
    its error."""
    finer = pd.Series([float(each.get("finer", 0.0)) for each in bugs["numbers"]], bugs.index, dtype=float)
    return (bugs["finding"] != INFERRED) | (bugs["error_rel"] <= CLEARLY_LESS * finer)


def wrong_in(wrong: pd.DataFrame, there: pd.DataFrame) -> tuple[str, ...]:
    """Return the dtypes whose leading verdicts show the fault, and those with a factor below a unit roundoff."""
    seen = _is_seen(wrong)
    factor = (there["label"] == label.BIASED) & (there["finding"] == SMALL_FACTOR) & ~there["_healthy"]
    factor &= there["tensor"].isin(wrong["tensor"]) & bool((wrong["label"] == label.LOGIC).all())
    return by_precision([*(wrong.loc[seen, "dtype"] if seen.any() else wrong["dtype"]), *there.loc[factor, "dtype"]])


def reach(
    leads: str, dtypes: Sequence[str], run: Sequence[str], there: pd.DataFrame, showing: pd.DataFrame,
    elsewhere: pd.DataFrame, groups: Groups,
) -> dict[str, Any]:  # fmt: skip
    """Return in which dtypes the leading tensors are wrong, right, or as good as hidden, and which were measured.

    dtypes: those that are wrong; run: all of the variant; there, showing: verdicts and rows of these tensors where the
    fault is; elsewhere: bugs of other problems that are no less its own.
    """
    tried = by_precision(showing["dtype"]) or by_precision(there["dtype"])
    there = there[there["dtype"].isin(tried)]
    other = {*elsewhere.loc[_is_seen(elsewhere), "dtype"]}
    if leads == label.LOGIC:  # another problem that has the same settings
        bugs = there[(there["label"] == leads) & there["tensor"].isin(leading(tuple(there["tensor"])))]
        dtypes = by_precision([*dtypes, *bugs.loc[_is_seen(bugs), "dtype"]])
    hidden, alone = set[str](), dict[str, tuple[str, ...]]()
    if leads in (*label.BUGS, label.BIASED):
        alone = right_alone(showing, there, dtypes)
        right = frozenset((name, dtype) for name, names in alone.items() for dtype in names)
        hidden = ({*there["dtype"]} & hides(showing, {*dtypes}, groups, right)) - other
    unsound = {*there.loc[~there["_healthy"], "dtype"]} | other | hidden
    sound = {*there["dtype"]} - unsound
    named = {*dtypes, *sound, *hidden, *other}
    part = tried != run or all(DTYPES[name].bytes == 2 for name in run) or len(run) == 1 or not {*run} <= named
    return {
        "dtypes": tuple(dtypes), "sound_dtypes": by_precision(sound - {*dtypes}), "hidden_dtypes": by_precision(hidden),
        "only_dtypes": tried if part else (), "run_dtypes": tuple(run), "right_alone": alone,
    }  # fmt: skip


def groups_of(tensors: Sequence[str], known: Mapping[str, Cause]) -> Groups:
    """Return the tensors in groups that have one fault. It is one where no two proven causes differ."""
    proven = [cause for name in tensors if (cause := known.get(name)) and cause.proven]
    groups: list[tuple[Cause, set[str]]] = []
    for cause in proven:
        names = cause.alike | {*cause.names}
        same = (x for first, x in groups if names & {*first.names, *first.alike} and not cause.differs_from(first))
        found = next(same, None)
        if found is None:
            groups.append((cause, found := set()))
        found.add(cause.tensor)
    first = groups[0][1] if groups else set[str]()
    first |= {*tensors} - {cause.tensor for cause in proven}
    return [first, *(each for _, each in groups[1:])]


def hides(rows: pd.DataFrame, dtypes: set[str], groups: Groups = (), right: Pairs = frozenset()) -> set[str]:
    """Return the dtypes of rows in which, of some group, no tensor has less than a third of the least error that it has
    in these dtypes, which are wrong: whether they are right is not known. As one of 16 bits, or float32 in TF32, where
    a factor of float64 is 1.001. right: tensors and dtypes in which others are wrong."""
    less = _is_less(rows, dtypes, right)
    each = [less.reindex(columns=[*group], fill_value=False).any(axis=1) for group in groups or [{*less.columns}]]
    return {*less.index[~pd.concat(each, axis=1).all(axis=1)]} - dtypes


def _is_less(rows: pd.DataFrame, dtypes: set[str], right: Pairs = frozenset()) -> pd.DataFrame:
    """By dtype and tensor, whether an error is less than a third of the least one in these dtypes."""
    errors = rows.groupby(["tensor", "dtype"])["error_rel"].max()
    wrong = errors[errors.index.isin(dtypes, level="dtype") & ~errors.index.isin([*right])]
    least = wrong.groupby(level="tensor").min()
    table = errors.unstack("tensor")
    return table.lt(least.reindex(table.columns).fillna(float("inf")) / CLEARLY_LESS)


def right_alone(rows: pd.DataFrame, there: pd.DataFrame, dtypes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return, of the tensors that a sentence begins with, those that are right in dtypes in which others are wrong."""
    found = {}
    for name in leading(tuple(dict.fromkeys(there["tensor"]))):
        of_tensor = there[there["tensor"] == name]
        ill = {*of_tensor.loc[~of_tensor["_healthy"], "dtype"]}
        less = _is_less(rows[rows["tensor"] == name], ill & {*dtypes})
        if right := ({*less.index[less.any(axis=1)]} & {*dtypes}) - ill:
            found[name] = by_precision(right)
    return found


def otherwise(
    rows: pd.DataFrame, known: Mapping[str, Cause], bugs: pd.DataFrame, shown: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the errors of wrong tensors that proven causes do not make, by dtype and tensor.

    A cause is proven in one dtype, and makes errors of one size in all: where another dtype's is more than 3 times that
    and single device's together, or less than a third, it has another cause. A cast's error is one of a dtype.
    """
    kinds = {INDEPENDENT} if not shown or INDEPENDENT in shown else {*shown}
    rows = rows[(rows["rank"] == ALL_RANKS) & rows["inputs"].isin(kinds) & rows["error_rel"].notna()]
    found: dict[str, dict[str, float]] = {}
    wrong = {*zip(bugs["tensor"], bugs["dtype"], strict=True)}
    for name, cause in known.items():
        of_tensor = rows[(rows["tensor"] == name) & (rows["world_size"] == cause.world_size)]
        of_tensor = of_tensor.groupby("dtype")[["error_rel", "single_device_rel"]].max()
        if not cause.proven or cause.is_cast or cause.dtype not in of_tensor.index:
            continue
        off = of_tensor["error_rel"].astype(float).to_dict()
        single = of_tensor["single_device_rel"].astype(float).to_dict()
        made = off.pop(cause.dtype)
        for dtype, size in off.items():
            alike = made / CLEARLY_LESS <= size <= CLEARLY_LESS * (made + single[dtype])
            if (name, dtype) in wrong and not alike:
                found.setdefault(str(dtype), {})[name] = size
    return found


def asked(wrong: pd.DataFrame, shown: Sequence[str], rows: pd.DataFrame, dtypes: Sequence[str]) -> set[str]:
    """Return the distributions that show what is wrong; those with a known answer where Gaussian ones, in which every
    dtype is measured, do not: no error there is more than 3 times single device's."""
    probes = {kind for kind in wrong["finding"] if kind in PROBES}
    if shown or not (probes or (wrong["finding"] == "keys").any()):
        return {*shown}
    ordinary = rows[(rows["inputs"] == INDEPENDENT) & rows["dtype"].isin(dtypes)]
    if (times_single_device(ordinary) > CLEARLY_LESS).any():
        return {INDEPENDENT}
    return probes or {"zero_query", "index_value"} & {*rows["inputs"]}
