"""Section: which rank is furthest off? Ratio to single device, and error, by rank at the most ranks."""

import math
from typing import Any

import pandas as pd

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells, grid
from accuracy.core.number import MISSING, geometric_mean, scientific
from accuracy.report.series import SINGLE_DEVICE, Facet

AGAINST = {"error": "error against float64", "diff": "diff against the single-device kernel"}
DRAWN = {"x_single_device": "times single device", "error_mean": "mean absolute error"}
MARKERS_PER_LINE = 5
MOST_RANK_LABELS = 8
MOST_TABLE_ROWS = 160  # a table that one would print


def rank_panel(facet: Facet, slots: dict[str, int]) -> Panel | None:
    """A chart per tensor for error and for diff, and the numbers by rank; None without rows of two ranks or more."""
    size = facet.largest_world
    rows = facet.rows[(facet.rows["world_size"] == size) & (facet.rows["rank"] >= 0)]
    if rows.empty or size == 1:
        return None
    profile = profile_of(rows)
    charts, further = (
        tuple(filter(None, (_chart(facet, tensor, column, profile, size, slots) for tensor in facet.tensors)))
        for column in DRAWN
    )
    note = f"{size} ranks, seeds as one. Above 1 a rank is further from the reference than single device is there."
    by_rank = []
    if len(profile.drop_duplicates(["series", "rank"])) > MOST_TABLE_ROWS:
        note += " The numbers of every rank are in the table of all rows."
    else:
        by_rank = [rank_table(facet, profile, against, size) for against in AGAINST]
    present = set(rows["series"])
    return Panel(
        f"ranks-{facet.slug}",
        facet.label,
        note,
        legend=tuple(mark.series_key(label, slots[label]) for label in facet.series if label in present),
        charts=charts or further,
        further=further if charts else (),
        data=(_spread(facet, profile, size), *by_rank),
    )


def profile_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Per (series, tensor, rank) over the seeds: the greatest maximum, the mean of means, the mean ratio."""
    how: dict[str, Any] = {"error_max": "max", "error_mean": "mean", "diff_max": "max", "diff_mean": "mean"}
    how["x_single_device"] = geometric_mean
    return rows.groupby(["series", "tensor", "rank"]).agg(how).reset_index()


def _chart(
    facet: Facet, tensor: str, column: str, profile: pd.DataFrame, size: int, slots: dict[str, int]
) -> Chart | None:
    rows = profile[profile["tensor"] == tensor]
    if column == "x_single_device":
        rows = rows[~rows["series"].isin(facet.rows.loc[facet.rows["variant"] == SINGLE_DEVICE, "series"])]
    values = [value for value in rows[column] if value > 0]
    if not values:
        return None
    axes = drawing.new_axes(f"{tensor}, {DRAWN[column]}", "rank", height=2.5)
    if column == "x_single_device":
        drawing.ratio_y(axes, [1.0, *values])
        axes.axhline(1.0, **drawing.REFERENCES["single-device"], zorder=1)
    else:
        drawing.log_y(axes, values)
    texts = []
    for label, found in rows.groupby("series"):
        every = max(1, math.ceil(found["rank"].nunique() / MARKERS_PER_LINE))
        look = {"markersize": 3.2, "markevery": every, "linewidth": 1.3}
        drawing.line(axes, found["rank"], found[column], slots[str(label)], **look)
        texts.append("{} from {} to {}".format(label, *_extremes(found, column)))
    ticks = range(0, size, math.ceil(size / MOST_RANK_LABELS))
    drawing.fix_ticks(axes.xaxis, ticks, ticks)
    title = f"{tensor}: {DRAWN[column]} by rank, {facet.label}, world size {size}"
    said = f"Logarithmic in value. {'; '.join(texts)}."
    name = column.removesuffix("_single_device").removesuffix("_mean")
    return Chart(to_svg(axes, f"ranks-{facet.slug}-{name}-{tensor}", title, said), title)


def _extremes(rows: pd.DataFrame, column: str) -> tuple[str, str]:
    ordered = rows.set_index("rank")[column].dropna().sort_values(kind="stable")
    texts = [f"{scientific(value)} (rank {rank})" for rank, value in ordered.items()] or [MISSING]
    return texts[0], texts[-1]


def _spread(facet: Facet, profile: pd.DataFrame, size: int) -> Table:
    found = dict(iter(profile.groupby(["series", "tensor"])))
    keys = [(label, tensor) for label in facet.series for tensor in facet.tensors if (label, tensor) in found]
    rows = (cells(*key, *_extremes(found[key], "error_mean"), _extremes(found[key], "error_max")[1]) for key in keys)
    head = ("variant", "tensor", "least mean error", "greatest mean error", "greatest maximum")
    return Table(f"Most and least accurate rank, {facet.label}, world size {size}", head, tuple(rows))


def rank_table(facet: Facet, profile: pd.DataFrame, against: str, size: int) -> Table:
    """Rank, maximum and mean for every tensor: what the tests of ring-flash-attention print."""
    kinds = {kind: f"{against}_{kind}" for kind in ("max", "mean")}
    ordered: Any = profile.set_index(["series", "rank", "tensor"]).sort_index().reindex(facet.series, level="series")
    found = {
        (label, rank, f"{tensor} {kind}"): scientific(row[column])
        for (label, rank, tensor), row in ordered.iterrows()
        for kind, column in kinds.items()
    }
    caption = f"{AGAINST[against].capitalize()} by rank, {facet.label}, world size {size}"
    head = [f"{tensor} {kind}" for tensor in facet.tensors for kind in kinds]
    return grid(caption, ("variant", "rank"), head, found)
