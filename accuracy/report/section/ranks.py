"""Section: which rank is furthest off? Maximum and mean of error and diff by rank, at the largest world
size.
"""

import math

import pandas as pd
from matplotlib.axes import Axes

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.core.number import MISSING, as_float, scientific
from accuracy.report.section.growth import drawable
from accuracy.report.series import Facet

AGAINST = {"error": "error against float64", "diff": "diff against the single-device kernel"}
MARKERS_PER_LINE = 5
MOST_RANK_LABELS = 8
MOST_TABLE_ROWS = 160


def rank_panel(facet: Facet, slots: dict[str, int]) -> Panel | None:
    """A chart per tensor for error and for diff, and the numbers by rank; None without rows of two ranks or more."""
    size = facet.largest_world
    rows = facet.rows[(facet.rows["world_size"] == size) & (facet.rows["rank"] >= 0)]
    if rows.empty or size == 1:
        return None
    profile = profile_of(rows)
    charts = tuple(
        chart
        for against in AGAINST
        for tensor in facet.tensors
        if (chart := _chart(facet, tensor, against, profile, size, slots)) is not None
    )
    by_rank = _by_rank(facet, profile, size)
    note = f"World size {size}. Solid: mean, dashed: maximum of the absolute value, over all seeds."
    present = [label for label in facet.series if label in set(rows["series"])]
    return Panel(
        slug=f"ranks-{facet.slug}",
        label=facet.label,
        note=note if by_rank else f"{note} The numbers of every rank are in the table of all rows.",
        legend=tuple(mark.series_key(label, slots[label]) for label in present),
        charts=charts,
        data=(_spread(facet, profile, size), *by_rank),
    )


def profile_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Per (series, tensor, rank): the greatest maximum and the mean of means over the seeds."""
    how = {"error_max": "max", "error_mean": "mean", "diff_max": "max", "diff_mean": "mean"}
    return rows.groupby(["series", "tensor", "rank"]).agg(how).reset_index()


def _chart(
    facet: Facet, tensor: str, against: str, profile: pd.DataFrame, size: int, slots: dict[str, int]
) -> Chart | None:
    rows = profile[profile["tensor"] == tensor]
    values = [*rows[f"{against}_max"].map(as_float), *rows[f"{against}_mean"].map(as_float)]
    if not any(value > 0 for value in values):
        return None
    axes = drawing.new_axes(f"{tensor} {against}", "rank", height=2.5)
    drawing.log_y(axes, values)
    for label, found in rows.groupby("series"):
        _draw(axes, found, against, slots[str(label)])
    stride = math.ceil(size / MOST_RANK_LABELS)
    drawing.fix_ticks(axes.xaxis, range(0, size, stride), [str(rank) for rank in range(0, size, stride)])
    title = f"{tensor}: {AGAINST[against]} by rank, {facet.label}, world size {size}"
    name = f"ranks-{facet.slug}-{against}-{tensor}"
    return Chart(to_svg(axes, name, title, _describe(rows, against)), title)


def _draw(axes: Axes, rows: pd.DataFrame, against: str, slot: int) -> None:
    every = max(1, math.ceil(rows["rank"].nunique() / MARKERS_PER_LINE))
    for column, dash, weight in ((f"{against}_mean", "-", 1.3), (f"{against}_max", (0, (3, 1.5)), 0.9)):
        ranks, values = drawable(rows["rank"].tolist(), rows[column].map(as_float).tolist())
        axes.plot(
            ranks,
            values,
            color=drawing.series_colour(slot),
            linestyle=dash,
            linewidth=weight,
            marker=mark.marker(slot) if dash == "-" else "",
            markersize=3.2,
            markevery=every,
            gid=f"s{slot}",
            clip_on=False,
        )


def _describe(rows: pd.DataFrame, against: str) -> str:
    texts = []
    for label, found in rows.groupby("series"):
        low, high = _extremes(found, f"{against}_mean")
        texts.append(f"{label} mean from {low} to {high}")
    return "Logarithmic in value. " + "; ".join(texts) + "."


def _extremes(rows: pd.DataFrame, column: str) -> tuple[str, str]:
    """Least and greatest value with the rank that has it."""
    values = zip(rows[column].map(as_float), rows["rank"], strict=True)
    ordered = sorted((value, rank) for value, rank in values if not math.isnan(value))
    if not ordered:
        return MISSING, MISSING
    first, last = (f"{scientific(value)} (rank {rank})" for value, rank in (ordered[0], ordered[-1]))
    return first, last


def _spread(facet: Facet, profile: pd.DataFrame, size: int) -> Table:
    """One row per (variant, tensor): the most accurate and the least accurate rank."""
    found = dict(iter(profile.groupby(["series", "tensor"])))
    keys = [(label, tensor) for label in facet.series for tensor in facet.tensors if (label, tensor) in found]
    rows = tuple(
        cells(*key, *_extremes(found[key], "error_mean"), _extremes(found[key], "error_max")[1]) for key in keys
    )
    head = ("variant", "tensor", "least mean error", "greatest mean error", "greatest maximum")
    return Table(f"Most and least accurate rank, {facet.label}, world size {size}", head, rows)


def _by_rank(facet: Facet, profile: pd.DataFrame, size: int) -> list[Table]:
    """Every rank of every variant, as long as that is a table one would print."""
    if len(profile.drop_duplicates(["series", "rank"])) > MOST_TABLE_ROWS:
        return []
    return [rank_table(facet, profile, against, size) for against in AGAINST]


def rank_table(facet: Facet, profile: pd.DataFrame, against: str, size: int) -> Table:
    """Rank, maximum and mean for every tensor: what the tests of ring-flash-attention print."""
    order = {label: place for place, label in enumerate(facet.series)}
    found = profile.set_index(["series", "rank", "tensor"])[[f"{against}_max", f"{against}_mean"]]
    values = dict(zip(found.index, found.itertuples(index=False, name=None), strict=True))
    keys = sorted({(label, rank) for label, rank, _ in values}, key=lambda key: (order[key[0]], key[1]))
    nothing = (None, None)
    rows = tuple(
        cells(
            label,
            rank,
            *(scientific(value) for tensor in facet.tensors for value in values.get((label, rank, tensor), nothing)),
        )
        for label, rank in keys
    )
    head = [f"{tensor} {kind}" for tensor in facet.tensors for kind in ("max", "mean")]
    caption = f"{AGAINST[against].capitalize()} by rank, {facet.label}, world size {size}"
    return Table(caption, ("variant", "rank", *head), rows)
