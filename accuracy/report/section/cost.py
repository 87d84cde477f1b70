"""Section: what does a variant cost in time and memory, beside what it loses in accuracy?"""

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.core.number import as_float, plain, ratio, scientific, seconds, size_in_bytes
from accuracy.report.costs import cost_of, front
from accuracy.report.section.growth import drawable
from accuracy.report.section.recommendation import recommendation_table
from accuracy.report.series import SINGLE_DEVICE, Facet

_COSTS = {"seconds": "seconds per case", "peak_bytes": "peak memory in MiB"}
_BYTES_PER_MIB = 2.0**20
DRAWN = ("out", "dk")  # dk is what ranks add up: schedules differ there most


def cost_panel(facet: Facet, drawn: Facet, slots: dict[str, int]) -> Panel | None:
    """Scatter of cost against error at the largest world size, and the same as a table. drawn: the facet with the
    series that have a colour of their own; the others are grey, for what costs least may err as others do.
    """
    size = facet.largest_world
    costs = cost_of(facet.widest, "series", "variant", "world_size")
    coloured = {label: slots[label] for label in drawn.series}
    tensors = [tensor for tensor in facet.tensors if tensor in DRAWN] or facet.tensors[:1]
    charts = tuple(
        chart
        for tensor in tensors
        for column in _COSTS
        if (chart := _chart(facet, tensor, column, costs, size, coloured)) is not None
    )
    if costs.empty:
        return None
    return Panel(
        slug=f"cost-{facet.slug}",
        label=facet.label,
        note=f"World size {size}, or the largest that the variant has; time: of the fastest seed."
        + (" In grey those that are not drawn elsewhere." if len(drawn.series) < len(facet.series) else ""),
        legend=tuple(mark.series_key(*each) for each in coloured.items() if each[0] in set(costs["series"])),
        charts=charts,
        tables=tuple(filter(None, [recommendation_table(facet)])),
        data=(_table(facet, costs, size),),
    )


def _chart(
    facet: Facet, tensor: str, column: str, costs: pd.DataFrame, size: int, slots: dict[str, int]
) -> Chart | None:
    rows = costs[costs["tensor"] == tensor]
    scale = _BYTES_PER_MIB if column == "peak_bytes" else 1.0
    spent = [as_float(value) / scale for value in rows[column]]
    places, errors = drawable(spent, rows["error_rel"].map(as_float).tolist())
    places = [place for place in places if place > 0 and math.isfinite(place)]
    if len(places) != len(errors) or not places:
        return None
    axes = drawing.new_axes(f"relative error of {tensor}", _COSTS[column], height=2.5)
    drawing.log_y(axes, errors)
    for label, place, error in zip(rows["series"], spent, rows["error_rel"], strict=True):
        slot = slots.get(str(label))
        look: dict[str, Any] = (
            {"color": drawing.SOFT, "marker": "o", "markersize": 4, "zorder": 1.0}
            if slot is None
            else {"color": drawing.series_colour(slot), "marker": mark.marker(slot), "markersize": 6, "gid": f"s{slot}"}
        )
        axes.plot([place], [error], linestyle="none", clip_on=False, **look)
    _front(axes, spent, rows["error_rel"].where(rows["world_size"] == size))
    _linear_x(axes, places)
    title = f"Relative error of {tensor} against {_COSTS[column]}, {facet.label}, world size {size}"
    parts = [
        f"{label} {plain(place)} at error {scientific(error)}"
        for label, place, error in zip(rows["series"], spent, rows["error_rel"], strict=True)
    ]
    name = f"cost-{facet.slug}-{column.replace('_', '')}-{tensor}"
    return Chart(to_svg(axes, name, title, "; ".join(parts) + "."), title)


def _front(axes: Axes, spent: list[float], errors: pd.Series) -> None:
    """A stair through the variants of this world size that no other beats in both."""
    points = pd.DataFrame({"spent": spent, "error": errors.map(as_float).to_numpy()}).dropna()
    edge = points[front(points)].sort_values("spent", kind="stable")
    if len(edge) > 1:
        axes.step(edge["spent"], edge["error"], where="post", color=drawing.BORDER, linewidth=1.0, zorder=0.5)


def _linear_x(axes: Axes, places: list[float]) -> None:
    """From zero: a bar's worth of cost is read off the axis."""
    top = max(places) * 1.12
    step = 10.0 ** math.floor(math.log10(top))
    step *= next(part for part in (0.2, 0.5, 1.0, 2.0) if top / (step * part) <= 6)
    ticks = [step * place for place in range(int(top / step) + 1)]
    axes.set_xlim(0, top)
    drawing.fix_ticks(axes.xaxis, ticks, [f"{tick:g}" for tick in ticks])


def _table(facet: Facet, costs: pd.DataFrame, size: int) -> Table:
    first = costs[costs["variant"] == SINGLE_DEVICE]
    base_seconds, base_bytes = first["seconds"].median(), first["peak_bytes"].median()
    errors = {(row.series, row.tensor): row.error_rel for row in costs.itertuples()}
    rows = []
    for label in facet.series:
        found = costs[costs["series"] == label]
        if found.empty:
            continue
        took, peak = found["seconds"].iloc[0], found["peak_bytes"].iloc[0]
        rows.append(
            cells(
                label,
                seconds(took),
                ratio(as_float(took) / base_seconds if base_seconds > 0 else None),
                size_in_bytes(peak),
                ratio(as_float(peak) / base_bytes if base_bytes > 0 else None),
                *(scientific(errors.get((label, tensor))) for tensor in facet.tensors),
            )
        )
    head = ("variant", "time", "x single device", "peak memory", "x single device", *facet.tensors)
    return Table(f"Time and memory beside relative error, {facet.label}, world size {size}", head, tuple(rows))
