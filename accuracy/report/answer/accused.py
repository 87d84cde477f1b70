"""Which number is the page about? The worst cell of what the verdict accuses, else the worst of all."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from accuracy.core.dtype import DTYPES
from accuracy.core.probes import PROBES
from accuracy.report.means import geometric_means
from accuracy.report.section.recommendation import JUDGED
from accuracy.report.series import SINGLE_DEVICE
from accuracy.results.table import ALL_RANKS, TENSORS
from accuracy.verdict.diagnosis import Diagnosis, leading
from accuracy.verdict.label import LABELS

CELL = ["facet", "series", "variant", "kernel", "dtype", "world_size", "tensor"]
EXACT = "float64"  # its rounding is far below all others': it shows whether the schedule is right
ALIKE = 1.02  # ratios that seeds may exchange: of these the coarsest dtype's, as people run it
TOLD_RANK = 1.1  # a rank is named where it is further off than all ranks together by what one sees in three digits


@dataclass(frozen=True)
class Accused:
    """A cell, seeds as one. times: of single device's error, of the floor where kernels are alone; rank: the worst,
    None where the ranks are alike; there: its own ratio; most: the largest of all that the cell was chosen from;
    beyond: of tensors that are not judged and go further, the furthest cell each; apart: rows that are not among them;
    endless: tensors with an error where single device has none."""

    facet: str
    series: str
    kernel: str
    dtype: str
    tensor: str
    world_size: int
    times: float
    rank: int | None
    there: float
    alone: bool
    most: float
    named: str
    beyond: "tuple[Accused, ...]" = ()
    apart: tuple[str, ...] = ()
    endless: tuple[str, ...] = ()

    @property
    def column(self) -> str:
        """The ratio of the table."""
        return ratio_of(self.alone)


def ratio_of(alone: bool) -> str:
    """Kernels alone are their own single device: only the floor tells them apart."""
    return "x_floor" if alone else "x_single_device"


def furthest_first(found: list[Diagnosis], measured: pd.DataFrame) -> list[Diagnosis]:
    """The verdicts of one label by how far their variant's worst cell is; the gravest label stays first."""
    column = ratio_of(bool((measured["variant"] == SINGLE_DEVICE).all()))
    rows = measured[(measured["rank"] == ALL_RANKS) & np.isfinite(measured[column])]
    for wanted in (rows["dtype"] != EXACT, rows["tensor"].isin(JUDGED), ~rows["inputs"].isin(list(PROBES))):
        rows = _where(rows, wanted.loc[rows.index])
    means = geometric_means(rows, ["named", *CELL], [column])[column]
    most = means.groupby("named").max().to_dict()
    return sorted(found, key=lambda each: (LABELS.index(each.label), -most.get(each.variant, 0.0)))


def accused(measured: pd.DataFrame, blamed: Diagnosis | None) -> Accused | None:
    """measured: labelled rows with the column `named`, of all ranks and tensors. blamed: whom the verdict accuses."""
    if blamed:
        return _furthest(measured, blamed, JUDGED)
    worst = _furthest(measured, None, JUDGED)
    if worst is None:
        return None
    others = [name for name in TENSORS if name not in JUDGED and (measured["tensor"] == name).any()]
    found = [_furthest(measured[measured["tensor"] == name], None, (name,), 1.0) for name in others]
    further = [each for each in found if each and each.tensor != worst.tensor and worst.most < each.times < np.inf]
    return replace(worst, beyond=tuple(further), apart=_apart(measured), endless=_endless(measured, worst))


def _apart(measured: pd.DataFrame) -> tuple[str, ...]:
    """What the cell is not chosen from, though it was measured."""
    exact, probes = measured["dtype"] == EXACT, measured["inputs"].isin(list(PROBES))
    left = {EXACT: exact, "exact-answer inputs": probes}
    return tuple(name for name, rows in left.items() if rows.any() and not rows.all())


def _endless(measured: pd.DataFrame, worst: Accused) -> tuple[str, ...]:
    rows = measured[np.isinf(measured[worst.column]) & np.isfinite(measured["error_rel"])]
    rows = rows[(rows["dtype"] != EXACT) & ~rows["inputs"].isin(list(PROBES)) & (rows["rank"] == ALL_RANKS)]
    return tuple(dict.fromkeys(rows["tensor"] + " of " + rows["named"]))


def _furthest(
    measured: pd.DataFrame, blamed: Diagnosis | None, judged: tuple[str, ...], alike: float = ALIKE
) -> Accused | None:
    rows = measured
    if blamed:
        rows = _where(rows, rows["named"] == blamed.variant)
        rows = _where(rows, rows["tensor"].isin(leading(blamed.pattern)))
        rows = _where(rows, rows["world_size"].isin(blamed.pattern.world_sizes))
        rows = _where(rows, rows["dtype"] == min(blamed.pattern.dtypes, key=_precision, default=""))
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
    means = geometric_means(rows[rows["rank"] == ALL_RANKS], CELL, [column])[column].dropna()
    if means.empty:
        return None
    near = means[means >= means.max() / alike].reset_index()
    near["_bits"] = near["dtype"].map(_precision)
    near["_said"] = near[column].map(lambda value: float(f"{value:.2e}"))
    order = near.sort_values(["_bits", "_said", "world_size", column], ascending=[True, False, False, False])
    key = tuple(order.iloc[0][CELL])
    cell = dict(zip(CELL, key, strict=True))
    here = rows[(rows[CELL] == list(key)).all(axis=1)]
    by_rank = geometric_means(here[here["rank"] != ALL_RANKS], ["rank"], [column])[column].dropna()
    times = float(means.loc[key])
    told = len(by_rank) > 1 and by_rank.max() > TOLD_RANK * times
    return Accused(
        facet=str(cell["facet"]),
        series=str(cell["series"]),
        kernel=str(cell["kernel"]),
        dtype=str(cell["dtype"]),
        tensor=str(cell["tensor"]),
        world_size=int(str(cell["world_size"])),
        times=times,
        rank=int(str(by_rank.idxmax())) if told else None,
        there=float(by_rank.max()) if told else times,
        alone=alone,
        most=float(means.max()),
        named=str(here["named"].iloc[0]),
    )


def _precision(dtype: str) -> int:
    return DTYPES[dtype].precision


def _where(rows: pd.DataFrame, wanted: "pd.Series[bool]") -> pd.DataFrame:
    """The wanted rows; all where there is none."""
    return rows[wanted] if wanted.any() else rows
