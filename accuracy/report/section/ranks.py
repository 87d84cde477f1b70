"""Section: which rank is furthest off? Maximum and mean of error and diff by rank, at the largest world size."""

import math
from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes

from accuracy.report import drawing, mark
from accuracy.report.number import as_float, scientific
from accuracy.report.section.growth import drawable
from accuracy.report.series import Facet
from accuracy.report.svg import to_svg
from accuracy.report.view import Chart, Panel, Table, cells

AGAINST = {"error": "error against float64", "diff": "diff against the one-shot kernel"}
MARKERS_PER_LINE = 5
MOST_TABLE_ROWS = 700


def rank_panel(facet: Facet, slots: dict[str, int]) -> Panel | None:
    """A chart per tensor for error and for diff, and the numbers by rank; None without per-rank rows."""
    size = facet.largest_world
    rows = facet.rows[(facet.rows["world_size"] == size) & (facet.rows["rank"] >= 0)]
    if rows.empty:
        return None
    profile = profile_of(rows)
    charts = tuple(
        chart
        for against in AGAINST
        for tensor in facet.tensors
        if (chart := _chart(facet, tensor, against, profile, size, slots)) is not None
    )
    present = [label for label in facet.series if label in set(rows["series"])]
    return Panel(
        slug=f"ranks-{facet.slug}",
        label=facet.label,
        note=f"World size {size}. Solid: mean, dashed: maximum of the absolute value, over all seeds.",
        legend=tuple(mark.series_key(label, slots[label]) for label in present),
        charts=charts,
        data=(_spread(facet, profile, size), *_by_rank(facet, profile, size)),
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
    stride = max(1, (size - 1) // 8)
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
        mean = found.set_index("rank")[f"{against}_mean"]
        if mean.notna().any():
            worst = int(mean.idxmax())
            texts.append(f"{label} mean {scientific(mean.min())} to {scientific(mean.max())}, most at rank {worst}")
    return "Logarithmic in value. " + "; ".join(texts[:12]) + "."


def _spread(facet: Facet, profile: pd.DataFrame, size: int) -> Table:
    """One row per (variant, tensor): the most accurate and the least accurate rank."""
    rows = []
    for label in facet.series:
        for tensor in facet.tensors:
            found = profile[(profile["series"] == label) & (profile["tensor"] == tensor)].set_index("rank")
            if not found["error_mean"].notna().any():
                continue
            low, high = int(found["error_mean"].idxmin()), int(found["error_mean"].idxmax())
            rows.append(
                cells(
                    label,
                    tensor,
                    f"{scientific(found['error_mean'][low])} (rank {low})",
                    f"{scientific(found['error_mean'][high])} (rank {high})",
                    f"{scientific(found['error_max'].max())} (rank {int(found['error_max'].idxmax())})"
                    if found["error_max"].notna().any()
                    else "–",
                )
            )
    head = ("variant", "tensor", "least mean error", "greatest mean error", "greatest maximum")
    return Table(f"Most and least accurate rank, {facet.label}, world size {size}", head, tuple(rows))


def _by_rank(facet: Facet, profile: pd.DataFrame, size: int) -> Iterable[Table]:
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
