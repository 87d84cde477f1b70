"""Which cell is a page about: the worst of what is wrong, or of all? And the gravest label of each."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from accuracy.core import fields
from accuracy.core.dtype import DTYPES, PROBES
from accuracy.report.series import SINGLE_DEVICE, geometric_means
from accuracy.results.table import ALL_RANKS, TENSORS
from accuracy.verdict.evidence import INDEPENDENT
from accuracy.verdict.facts import Facts, Worst
from accuracy.verdict.inside import is_healthy
from accuracy.verdict.label import LABELS, ROUNDING
from accuracy.verdict.rows import is_plain

JUDGED = ("out", "dq", "dk", "dv")  # what a model trains on: lse is float32 whatever the case, delta follows from out
CELL = ["facet", "series", "variant", "kernel", "dtype", "world_size", "tensor"]
EXACT = "float64"  # its rounding is far below all others': it shows whether the schedule is right
ALIKE = 1.02  # ratios that seeds may exchange: of these the coarsest dtype's, as people run it
SHOWN = 0.1  # of a bug's furthest ratio: the plain masks and the fewest ranks that have as much are the page's
NAMED_RANK = 1.1  # a rank is named where it is further off than all ranks together by what one sees in three digits


def ratio_of(alone: bool) -> str:
    """Kernels alone are their own single device: only the floor tells them apart."""
    return "x_floor" if alone else "x_single_device"


def furthest_first(found: list[Facts], measured: pd.DataFrame) -> list[Facts]:
    """The verdicts of one label by how far their variant's worst cell is; the gravest label stays first."""
    column = ratio_of(bool((measured["variant"] == SINGLE_DEVICE).all()))
    rows = measured[(measured["rank"] == ALL_RANKS) & np.isfinite(measured[column])]
    for wanted in (rows["dtype"] != EXACT, rows["tensor"].isin(JUDGED), ~rows["inputs"].isin(list(PROBES))):
        rows = _where(rows, wanted.loc[rows.index])
    means = geometric_means(rows, ["named", *CELL], [column])[column]
    most = means.groupby("named").max().to_dict()
    return sorted(found, key=lambda each: (LABELS.index(each.label), -most.get(each.variant, 0.0)))


def worst_cell(measured: pd.DataFrame, blamed: Facts | None) -> Worst | None:
    """measured: labelled rows with the column `named`, of all ranks and tensors. blamed: whom the verdict accuses."""
    if blamed:
        return _furthest(measured, blamed, JUDGED)
    worst = _furthest(measured, None, JUDGED)
    if worst is None:
        return None
    others = [name for name in TENSORS if name not in JUDGED and (measured["tensor"] == name).any()]
    found = [_furthest(measured[measured["tensor"] == name], None, (name,), 1.0) for name in others]
    further = [each for each in found if each and each.tensor != worst.tensor and worst.most < each.times < np.inf]
    return replace(worst, beyond=tuple(further), left_out=_left_out(measured))


def _left_out(measured: pd.DataFrame) -> tuple[str, ...]:
    """What the cell is not chosen from, though it was measured."""
    exact, probes = measured["dtype"] == EXACT, measured["inputs"].isin(list(PROBES))
    left = {EXACT: exact, "exact-answer inputs": probes}
    return tuple(name for name, rows in left.items() if rows.any() and not rows.all())


def _furthest(
    measured: pd.DataFrame, blamed: Facts | None, judged: tuple[str, ...], alike: float = ALIKE
) -> Worst | None:
    rows = measured
    if blamed:
        rows = _where(rows, rows["named"] == blamed.variant)
        rows = _where(rows, rows["tensor"].isin(blamed.lead))
        rows = _where(rows, rows["inputs"].eq(INDEPENDENT) & (INDEPENDENT in (blamed.inputs or (INDEPENDENT,))))
        rows = _where(rows, rows["world_size"].isin(blamed.world_sizes))
        rows = _where(rows, rows["dtype"] == min(blamed.dtypes, key=_precision, default=""))
    alone = bool((rows["variant"] == SINGLE_DEVICE).all())  # in the table, or in what is blamed
    column = ratio_of(alone)
    for wanted in (
        np.isfinite(rows[column]),
        rows["variant"] != SINGLE_DEVICE,
        rows["dtype"] != EXACT,
        rows["tensor"].isin(judged),
        ~rows["inputs"].isin(list(PROBES)),  # of exact answers, single device may have no error at all
    ):
        rows = _where(rows, wanted.loc[rows.index])
    if blamed and blamed.is_bug:
        plain = rows[is_plain(rows["mask"])]
        rows = plain if plain[column].max() >= SHOWN * rows[column].max() else rows
    means = geometric_means(rows[rows["rank"] == ALL_RANKS], CELL, [column])[column].dropna()
    if means.empty:
        return None
    if blamed and blamed.is_bug:
        most = means.groupby("world_size").max()
        means = means[means.index.get_level_values("world_size") == most.index[most >= SHOWN * most.max()].min()]
    near = means[means >= means.max() / alike].reset_index()
    near["_bits"] = near["dtype"].map(_precision)
    near["_digits"] = near[column].map(lambda value: float(f"{value:.2e}"))
    order = near.sort_values(["_bits", "_digits", "world_size", column], ascending=[True, False, False, False])
    key = tuple(order.iloc[0][CELL])
    cell = dict(zip(CELL, key, strict=True))
    here = rows[(rows[CELL] == list(key)).all(axis=1)]
    by_rank = geometric_means(here[here["rank"] != ALL_RANKS], ["rank"], [column])[column].dropna()
    times = float(means.loc[key])
    apart = len(by_rank) > 1 and by_rank.max() > NAMED_RANK * times
    return Worst(
        facet=str(cell["facet"]),
        series=str(cell["series"]),
        spoken=fields.spoken(str(cell["series"])),
        named=str(here["named"].iloc[0]),
        kernel=str(cell["kernel"]),
        dtype=str(cell["dtype"]),
        tensor=str(cell["tensor"]),
        world_size=int(str(cell["world_size"])),
        column=column,
        times=times,
        rank=int(str(by_rank.idxmax())) if apart else None,
        there=float(by_rank.max()) if apart else times,
        most=float(means.max()),
    )


def _precision(dtype: str) -> int:
    return DTYPES[dtype].precision


def _where(rows: pd.DataFrame, wanted: "pd.Series[bool]") -> pd.DataFrame:
    """The wanted rows; all where there is none."""
    return rows[wanted] if wanted.any() else rows


INSIDE = "coarser inside"  # of a healthy cell whose ratio tells that the function computes in float32, say
ORDER = (*LABELS[:-2], INSIDE, *LABELS[-2:])


def gravest(judged: pd.DataFrame) -> dict[tuple[str, str, int, str], str]:
    """The gravest label of each variant, dtype, size and tensor. judged: verdicts with the column `named`."""
    inside = is_healthy(judged) & (judged["label"] != ROUNDING)
    graves = judged["label"].mask(inside, INSIDE).map(ORDER.index)
    least = graves.groupby([judged[name] for name in ("named", "dtype", "world_size", "tensor")], sort=False).min()
    found: dict[Any, int] = least.to_dict()
    return {key: ORDER[place] for key, place in found.items()}
