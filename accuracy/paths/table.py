"""What a run's tables say of two paths: equal, within two healthy roundings or beyond, and which is nearer.

In: the tables of a run whose cases are compared with another path (`against`). Out: tables with a row for each pair of
paths or boundary (`pairs`, `boundaries`, `places`), and each of these as text for a terminal (`*_text`).
"""

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.fields import pairs_of, path_text
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, METRICS_OF_PAIRS, OK

EQUAL, WITHIN, BEYOND = "equal", "within", "beyond"
CERTAIN = 3.0  # standard errors from which one path is called the nearer one: 0.3% by chance
MOST_VALUES = 6  # of an axis, in text
LEAST_SHARE = 0.01  # of the squared difference, in text
SETTING = (*fields.names(fields.INPUTS, fields.DTYPE, fields.PROBLEM), "seed")
COLUMNS = (
    "path_a", "path_b", *SETTING, "tensor", "rank", "status", "reason", "label", "nearer", "drift_differ",
    *(name for name in METRICS_OF_PAIRS if name not in ("drift_error_rel", "drift_nearer")), "error_a", "error_b",
    "case_id",
)  # fmt: skip
BOUNDARY = (
    "path", "dtype", "axis", "first", "last", "runs", "before", "value", "tensor", "differ", "elements", "drift_rel",
    "drift_ulp", "error_rel", "drift_error_rel", "nearer", "reason", "case_id",
)  # fmt: skip


def pairs(results: pd.DataFrame) -> pd.DataFrame:
    """A row for each pair, tensor and rank (-1: all), and one for each pair that has no numbers.

    label: `equal`, to the last bit; `within`, no further apart than two healthy roundings; `beyond`. nearer: `a` or
    `b`, the one whose squared error is smaller by more than CERTAIN standard errors over rows; `neither`.
    error_a, error_b: relative errors. Of the other columns `accuracy.columns()` says what they are.
    """
    against = results["against"].fillna("")
    rows = results[(against != "") & (results["drift_differ"].notna() | (results["status"] != OK))]
    measured = rows["drift_differ"].notna()
    near = np.where(rows["drift_rel"] <= rows["drift_limit"], WITHIN, BEYOND)
    labels = np.where(rows["drift_differ"].fillna(1) == 0, EQUAL, near)
    found = rows.assign(
        path_a=_paths(rows), path_b=rows["against"].str.removeprefix("given:"), label=np.where(measured, labels, ""),
        nearer=np.where(measured, _nearer(rows, "a", "b"), ""), error_a=rows["error_rel"],
        error_b=rows["drift_error_rel"],
    )  # fmt: skip
    return found[list(COLUMNS)].reset_index(drop=True)


def boundaries(found: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Where a path's bits change when something else does: a row for each boundary and tensor, one with an empty value
    where no probe found one.

    found: the run's `boundaries/`. path; axis: what was varied; first, last: between which values; runs: how many of
    them; before, value: neighbours whose bits differ; of `value` beside `before`: differ, of so many elements,
    drift_rel, drift_ulp, error_rel and drift_error_rel (`before`'s), nearer: `value`, `before`, `neither`.
    """
    cases = results.drop_duplicates("case_id").set_index("case_id")
    unmeasured = cases[~cases.index.isin(found["case_id"])].reset_index()[["case_id", "reason"]]
    found = pd.concat([found, unmeasured], ignore_index=True)
    about = cases.loc[found["case_id"]]
    changed = found.assign(
        path=_paths(about),
        dtype=about["dtype"].to_numpy(),
        differ=found["drift_differ"].astype("Int64"),
        nearer=np.where(found["value"].isna(), "", _nearer(found, "value", "before")),
        **{name: found[name].astype("Int64") for name in ("before", "value", "elements")},
    )
    return changed[list(BOUNDARY)].reset_index(drop=True)


def places(found: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Which places make two paths differ: a row for each pair, tensor and place; found: the run's `places/`.

    of_a, of_b: what each path has there; share: of the squared difference, Shapley's; alone: its fall where this place
    alone becomes b's; left: what remains with all places switched; shortest: the fewest places after whose switch a has
    b's bits, verified by another run; reason: why nothing was switched.
    """
    about = results.drop_duplicates("case_id").set_index("case_id").loc[found["case_id"]]
    named = found.assign(path_a=_paths(about), path_b=about["against"].to_numpy())
    return named[["path_a", "path_b", *found.columns.drop("case_id"), "case_id"]].reset_index(drop=True)


def pairs_text(results: pd.DataFrame) -> str:
    """A line for each pair over all ranks: out's numbers, and each tensor's label."""
    found = pairs(results).sort_values(["path_a", "path_b"], kind="stable")
    found = found[(found["rank"] == ALL_RANKS) & found["tensor"].notna()]
    if found.empty:
        return "no pair of paths was measured"
    keys = ["path_a", "path_b", "dtype", "seed"]
    lines = []
    for key, rows in found.groupby(keys, sort=False):
        by_tensor = {row["tensor"]: row for row in rows.drop_duplicates("tensor").to_dict("records")}
        line = dict(zip(keys, key, strict=True))
        if out := by_tensor.get("out"):
            numbers = {"drift": "drift_rel", "expected": "drift_expected", "limit": "drift_limit", "nearer": "nearer"}
            line |= {"differ": f"{out['drift_differ']:.0f}"} | {name: out[column] for name, column in numbers.items()}
        lines.append(line | {name: by_tensor[name]["label"] for name in ALL_TENSORS if name in by_tensor})
    title = "drift of out (relative Frobenius, all ranks), and each tensor: equal, within two healthy roundings, beyond"
    return f"{title}\n{pd.DataFrame(lines).fillna('').to_string(index=False, float_format='{:.3g}'.format)}"


def boundaries_text(found: pd.DataFrame) -> str:
    """A line for each path and axis: the first values with other bits, in which tensors, and the largest share."""
    keys = ["path", "dtype", "axis", "first", "last", "runs"]
    shares = found.assign(share=found["differ"].fillna(0) / found["elements"].fillna(1))
    table = shares.groupby(keys, sort=False).agg(
        at=("value", lambda each: _listed(each, MOST_VALUES)), tensors=("tensor", _listed),
        most=("share", "max"), reason=("reason", _listed),
    )  # fmt: skip
    text = table.reset_index().to_string(index=False, float_format="{:.2g}".format)
    return f"where bits of the same rows change (at nothing: at none of the values)\n{text}"


def places_text(found: pd.DataFrame) -> str:
    """A line for each tensor: the shares that are worth a word, and the shortest way to equal bits."""
    keys = ["path_a", "path_b", "tensor"]
    shown = found.sort_values("share", ascending=False, key=abs)
    shares = shown["share"].map("{:.0%}".format, na_action="ignore")
    shown["shares"] = (shown["place"] + " " + shares).where(shown["share"].abs() >= LEAST_SHARE)
    table = shown.groupby(keys, sort=False, dropna=False).agg(
        shares=("shares", _listed), **{name: (name, "first") for name in ("left", "shortest", "verified", "reason")}
    )
    return f"what makes the squared difference (Shapley)\n{table.reset_index().to_string(index=False, na_rep='')}"


def _listed(values: pd.Series, most: int | None = None) -> str:
    """Return the values that are there, each once."""
    found = values[values.notna()].unique()
    return ", ".join(map(str, found[:most])) + (", ..." if most and len(found) > most else "")


def _paths(rows: pd.DataFrame) -> list[str]:
    """Each row's own path, as `Other.text` has the other's."""
    found = []
    for row in rows.to_dict("records"):
        options, places, knobs = (pairs_of(row[name]) for name in ("options", "precision", "kernel_options"))
        options |= {"sharding": row["sharding"]} if "fn" in options else {}
        found.append(path_text(row["variant"], options, places, row["world_size"], row["kernel"], knobs))
    return found


def _nearer(rows: pd.DataFrame, this: str, other: str) -> np.ndarray:
    score = rows["drift_nearer"]
    return np.select([score > CERTAIN, score < -CERTAIN], [other, this], "neither")
