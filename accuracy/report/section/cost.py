"""Section: what does a variant cost in time and memory, beside what it loses in accuracy?"""

import math
from typing import Any

import pandas as pd

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.core.number import plain, ratio, scientific, seconds, size_in_bytes
from accuracy.report.section.recommendation import cost_of, front, recommendation_table
from accuracy.report.series import SINGLE_DEVICE, Facet

_COSTS = {"seconds": ("seconds per case", 1.0), "peak_bytes": ("peak memory in MiB", 2.0**20)}
DRAWN = ("out", "dk")  # dk is what ranks add up: schedules differ there most
_UNDRAWN: dict[str, Any] = {"color": drawing.SOFT, "marker": "o", "markersize": 4, "zorder": 1.0, "gid": None}


def cost_panel(facet: Facet, drawn: Facet, slots: dict[str, int]) -> Panel | None:
    """Scatter of cost against error at the largest world size, and the same as a table. drawn: the facet with the
    series that have a colour of their own; the others are grey, for what costs least may err as others do."""
    costs = cost_of(facet.widest, "series", "variant", "world_size")
    if costs.empty:
        return None
    coloured = {label: slots[label] for label in drawn.series}
    tensors = [tensor for tensor in facet.tensors if tensor in DRAWN] or facet.tensors[:1]
    charts = (
        _chart(facet, costs[costs["tensor"] == tensor], column, coloured) for tensor in tensors for column in _COSTS
    )
    present = set(costs["series"])
    return Panel(
        f"cost-{facet.slug}",
        facet.label,
        f"World size {facet.largest_world}, or the largest that the variant has; time: of the fastest seed."
        + (" In grey those that are not drawn elsewhere." if len(drawn.series) < len(facet.series) else ""),
        legend=tuple(mark.series_key(*each) for each in coloured.items() if each[0] in present),
        charts=tuple(filter(None, charts)),
        tables=tuple(filter(None, [recommendation_table(facet)])),
        data=(_table(facet, costs),),
    )


def _chart(facet: Facet, rows: pd.DataFrame, column: str, slots: dict[str, int]) -> Chart | None:
    """Of one tensor; the stair goes through the variants of the largest world that no other beats in both."""
    if rows.empty:
        return None
    what, unit = _COSTS[column]
    points = rows.assign(spent=rows[column] / unit)
    places, errors = drawing.drawable(points["spent"], points["error_rel"])
    if not all(place > 0 and math.isfinite(place) for place in places) or not places:
        return None
    tensor, size = rows["tensor"].iloc[0], facet.largest_world
    axes = drawing.new_axes(f"relative error of {tensor}", what, height=2.5)
    drawing.log_y(axes, errors)
    for each in points.itertuples():
        look = {"markersize": 6} if each.series in slots else _UNDRAWN
        drawing.line(axes, [each.spent], [each.error_rel], slots.get(str(each.series), 0), linestyle="none", **look)
    found = points.loc[points["world_size"] == size, ["spent", "error_rel"]].dropna()
    edge = found[front(found)].sort_values("spent", kind="stable")
    if len(edge) > 1:
        axes.step(edge["spent"], edge["error_rel"], where="post", color=drawing.BORDER, linewidth=1.0, zorder=0.5)
    top = max(places) * 1.12  # from zero: a bar's worth of cost is read off the axis
    step = 10.0 ** math.floor(math.log10(top))
    step *= next(part for part in (0.2, 0.5, 1.0, 2.0) if top / (step * part) <= 6)
    axes.set_xlim(0, top)
    drawing.fix_ticks(axes.xaxis, [step * place for place in range(int(top / step) + 1)])
    title = f"Relative error of {tensor} against {what}, {facet.label}, world size {size}"
    said = [f"{each.series} {plain(each.spent)} at error {scientific(each.error_rel)}" for each in points.itertuples()]
    name = f"cost-{facet.slug}-{column.replace('_', '')}-{tensor}"
    return Chart(to_svg(axes, name, title, f"{'; '.join(said)}."), title)


def _table(facet: Facet, costs: pd.DataFrame) -> Table:
    single_device = costs[costs["variant"] == SINGLE_DEVICE].median(numeric_only=True)
    rows = []
    for label in facet.series:
        found = costs[costs["series"] == label].set_index("tensor")
        if len(found):
            first = found.iloc[0]
            took, peak = (
                (way(first[name]), ratio(first[name] / single_device[name] if single_device[name] > 0 else None))
                for name, way in (("seconds", seconds), ("peak_bytes", size_in_bytes))
            )
            errors = (scientific(found["error_rel"].get(tensor)) for tensor in facet.tensors)
            rows.append(cells(label, *took, *peak, *errors))
    head = ("variant", "time", "x single device", "peak memory", "x single device", *facet.tensors)
    caption = f"Time and memory beside relative error, {facet.label}, world size {facet.largest_world}"
    return Table(caption, head, tuple(rows))
