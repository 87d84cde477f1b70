"""Are two paths equal, as near as two healthy roundings, or further apart, and which is nearer the reference?

In: a table whose cases are compared with another path (`against`). Out: a row for each pair, tensor and rank.
"""

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.fields import pairs_of, path_text
from accuracy.results.table import ALL_RANKS, ALL_TENSORS, METRICS_OF_PAIRS, OK

EQUAL, WITHIN, BEYOND = "equal", "within", "beyond"
CERTAIN = 3.0  # standard errors from which one path is called the nearer one: 0.3% by chance
SETTING = (*fields.names(fields.INPUTS, fields.DTYPE, fields.PROBLEM), "seed")
COLUMNS = (
    "path_a", "path_b", *SETTING, "tensor", "rank", "status", "reason", "label", "nearer", "drift_differ",
    *(name for name in METRICS_OF_PAIRS if name not in ("drift_error_rel", "drift_nearer")), "error_a", "error_b",
    "case_id",
)  # fmt: skip


def pairs(results: pd.DataFrame) -> pd.DataFrame:
    """A row for each pair, tensor and rank (-1: all), and one for each pair that has no numbers.

    label: `equal`, to the last bit; `within`, no further apart than two healthy roundings; `beyond`. nearer: `a` or
    `b`, the one whose squared error is smaller by more than CERTAIN standard errors over rows; `neither`.
    error_a, error_b: relative errors. Of the other columns `accuracy.columns()` says what they are.
    """
    against = results["against"].fillna("")
    rows = results[(against != "") & (results["drift_differ"].notna() | (results["status"] != OK))]
    found = rows.assign(
        path_a=[_text(row) for row in rows.to_dict("records")],
        path_b=rows["against"].str.removeprefix("given:"),
        label=_labels(rows),
        nearer=_nearer(rows),
        error_a=rows["error_rel"],
        error_b=rows["drift_error_rel"],
    )
    return found[list(COLUMNS)].reset_index(drop=True)


def _text(row: fields.Row) -> str:
    """A row's own path, as `Other.text` has the other's."""
    options, places, knobs = (pairs_of(row[name]) for name in ("options", "precision", "kernel_options"))
    options |= {"sharding": row["sharding"]} if "fn" in options else {}
    return path_text(row["variant"], options, places, row["world_size"], row["kernel"], knobs)


def _labels(rows: pd.DataFrame) -> pd.Series:
    measured = rows["drift_differ"].notna()
    near = np.where(rows["drift_rel"] <= rows["drift_limit"], WITHIN, BEYOND)
    labels = np.where(rows["drift_differ"].fillna(1) == 0, EQUAL, near)
    return pd.Series(np.where(measured, labels, ""), index=rows.index)


def _nearer(rows: pd.DataFrame) -> pd.Series:
    score = rows["drift_nearer"].fillna(0.0)
    words = np.select([score > CERTAIN, score < -CERTAIN], ["b", "a"], "neither")
    return pd.Series(np.where(rows["drift_differ"].notna(), words, ""), index=rows.index)


def summary(results: pd.DataFrame) -> str:
    """Of each pair over all ranks, a line: out's numbers, and each tensor's label."""
    found = pairs(results).sort_values(["path_a", "path_b"], kind="stable")
    whole = found[(found["rank"] == ALL_RANKS) & found["tensor"].notna()]
    if whole.empty:
        return "no pair of paths was measured"
    keys = ["path_a", "path_b", "dtype", "seed"]
    lines = []
    for key, rows in whole.groupby(keys, sort=False):
        by_tensor = rows.drop_duplicates("tensor").set_index("tensor")
        labels = {name: by_tensor["label"][name] for name in ALL_TENSORS if name in by_tensor.index}
        lines.append({**dict(zip(keys, key, strict=True)), **_of_out(by_tensor), **labels})
    title = "drift of out (relative Frobenius, all ranks), and each tensor: equal, within two healthy roundings, beyond"
    return f"{title}\n{pd.DataFrame(lines).fillna('').to_string(index=False, float_format='{:.3g}'.format)}"


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
    words = np.select(
        [found["drift_nearer"] > CERTAIN, found["drift_nearer"] < -CERTAIN], ["before", "value"], "neither"
    )
    numbers = {name: found[name].astype("Int64") for name in ("before", "value", "elements")}
    changed = found.assign(
        path=[_text(row) for row in about.to_dict("records")],
        dtype=about["dtype"].to_numpy(),
        differ=found["drift_differ"].astype("Int64"),
        nearer=np.where(found["value"].isna(), "", words),
        **numbers,
    )
    return changed[[*BOUNDARY, "case_id"]].reset_index(drop=True)


BOUNDARY = (
    "path", "dtype", "axis", "first", "last", "runs", "before", "value", "tensor", "differ", "elements", "drift_rel",
    "drift_ulp", "error_rel", "drift_error_rel", "nearer", "reason",
)  # fmt: skip


def told(found: pd.DataFrame) -> str:
    """The boundaries for a terminal: of each axis the first value with other bits, out and lse beside each other."""
    keys = ["path", "dtype", "axis", "first", "last", "runs"]
    lines = []
    for key, rows in found.groupby(keys, sort=False):
        values = rows["value"].dropna().unique()
        at = ", ".join(str(value) for value in values[:MOST_TOLD]) + (", ..." if len(values) > MOST_TOLD else "")
        most = rows["differ"].fillna(0) / rows["elements"].fillna(1)
        reason = next((text for text in rows["reason"].dropna() if text), "")
        none = reason or f"none among {key[-1]} values"
        line = dict(zip(keys, key, strict=True)) | {
            "bits change at": at or none,
            "tensors": ", ".join(dict.fromkeys(rows["tensor"].dropna())),
            "most that differ": f"{most.max():.2g}" if at else "",
        }
        lines.append(line)
    return f"where bits of the same rows change\n{pd.DataFrame(lines).to_string(index=False)}"


MOST_TOLD = 6


def places(found: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Which places make two paths differ: a row for each pair, tensor and place; found: the run's `places/`.

    of_a, of_b: what each path has there; share: of the squared difference, Shapley's; alone: its fall where this place
    alone becomes b's; left: what remains with all places switched; shortest: the fewest places after whose switch a has
    b's bits, verified by another run; reason: why nothing was switched.
    """
    about = results.drop_duplicates("case_id").set_index("case_id").loc[found["case_id"]]
    named = found.assign(path_a=[_text(row) for row in about.to_dict("records")], path_b=about["against"].to_numpy())
    return named[["path_a", "path_b", *found.columns.drop("case_id"), "case_id"]].reset_index(drop=True)


def places_told(found: pd.DataFrame) -> str:
    """For a terminal: of each tensor the shares that are worth a word, and the shortest way to equal bits."""
    lines = []
    for (a, b, tensor), rows in found.groupby(["path_a", "path_b", "tensor"], sort=False, dropna=False):
        rows = rows.sort_values("share", ascending=False, key=abs)
        named = zip(rows["place"], rows["share"].fillna(0.0), strict=True)
        shares = [f"{place} {share:.0%}" for place, share in named if abs(share) >= WORTH]
        first = rows.iloc[0]
        lines.append({"path_a": a, "path_b": b, "tensor": tensor, "shares": ", ".join(shares) or first["reason"],
                      "left": first["left"],
                      "equal bits with": first["shortest"], "verified": first["verified"]})  # fmt: skip
    table = pd.DataFrame(lines).to_string(index=False, float_format="{:.2g}".format)
    return f"what makes the squared difference (Shapley)\n{table}"


WORTH = 0.01


def logprobs(found: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """How far two paths' log-probabilities of the same next words are apart: a row for each pair and depth; found: the
    run's `logprobs/`, whose columns `accuracy.results.table.LOGPROBS_SCHEMA` explains."""
    about = results.drop_duplicates("case_id").set_index("case_id").loc[found["case_id"]]
    named = found.assign(path_a=[_text(row) for row in about.to_dict("records")], path_b=about["against"].to_numpy())
    named = named.assign(**{name: about[name].to_numpy() for name in ("dtype", "seed", "weights")})
    kept = found.columns.drop("case_id")
    return named[["path_a", "path_b", "dtype", "seed", "weights", *kept, "case_id"]].reset_index(drop=True)


def logprobs_told(found: pd.DataFrame) -> str:
    """For a terminal: of each pair depths of 1, 2, 4, ... layers and the last one, means over the seeds."""
    keys = ["path_a", "path_b", "dtype", "weights", "depth"]
    numbers = ["mean", "max", "k1", "k3", "kl", "outside", "error_a", "error_b", "rest"]
    rows = found.groupby(keys, sort=False)[numbers].mean().reset_index()
    power = rows["depth"].map(lambda depth: depth & (depth - 1) == 0)
    shown = rows[power | (rows["depth"] == rows["depth"].max())].to_string(index=False, float_format="{:.2g}".format)
    return f"log-probabilities of the next words, path_a less path_b (nats)\n{shown}"


def _of_out(by_tensor: pd.DataFrame) -> dict[str, object]:
    if "out" not in by_tensor.index:
        return {}
    out = by_tensor.loc["out"]
    return {
        "differ": f"{out['drift_differ']:.0f}", "drift": out["drift_rel"], "expected": out["drift_expected"],
        "limit": out["drift_limit"], "nearer": out["nearer"],
    }  # fmt: skip
