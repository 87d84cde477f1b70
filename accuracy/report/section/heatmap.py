"""Section: how far is each variant from the reference, as a multiple of what the single-device kernel is?

Where nothing but kernels was run once, they are compared with the floor.
"""

import math

import pandas as pd

from accuracy.chart.view import Panel, Table, TableCell, grid
from accuracy.core.number import MISSING, as_float, geometric_mean, ratio
from accuracy.report.series import SINGLE_DEVICE, Facet

SATURATED_OCTAVES = 2.0  # a quarter of the single-device error, or four times it, has the full colour


def heatmap_panel(facet: Facet) -> Panel:
    """Every variant at its largest world size in the open, every smaller world size as further tables."""
    slug, largest, widest = f"heatmap-{facet.slug}", facet.largest_world, facet.widest
    if facet.kernels_alone:
        caption = f"Error as a multiple of the floor, {facet.label}"
        return Panel(slug, facet.label, tables=(_table(facet, widest, caption, column="x_floor"),))
    caption = f"Error as a multiple of the single-device kernel's, {facet.label}, world size"
    sizes = sorted(facet.whole["world_size"].unique(), reverse=True)[1:]
    first = _table(facet, widest[widest["variant"] != SINGLE_DEVICE], f"{caption} {largest}", largest)
    further = (_table(facet, facet.whole[facet.whole["world_size"] == size], f"{caption} {size}") for size in sizes)
    return Panel(slug, facet.label, tables=(first,), data=tuple(further))


def _table(
    facet: Facet, rows: pd.DataFrame, caption: str, expected: int | None = None, column: str = "x_single_device"
) -> Table:
    """Series x tensors; a series at another world size than `expected` says so."""
    ratios = rows.groupby(["series", "tensor"])[column].agg(geometric_mean)
    found: dict[tuple[object, str], TableCell] = {}
    for label, size in rows.groupby("series")["world_size"].max().reindex(facet.series).dropna().astype(int).items():
        name = label if expected in (None, size) else f"{label} (world size {size})"
        found |= {(name, tensor): heat_cell(ratios.get((label, tensor))) for tensor in facet.tensors}
    return grid(caption, ["variant"], facet.tensors, found)


def heat_cell(value: object) -> TableCell:
    """A ratio with its colour: logarithmic, none at 1."""
    number = as_float(value)
    if math.isnan(number):
        return TableCell(MISSING, kind="absent", hint="not defined or not measured")
    if math.isinf(number):
        hint = "not finite, or the single-device kernel's error is zero"
        return TableCell("∞", kind="heat infinite", heat=1.0, hint=hint)
    octaves = math.log2(number) if number > 0 else -SATURATED_OCTAVES
    heat = max(-1.0, min(1.0, octaves / SATURATED_OCTAVES))
    return TableCell(ratio(number), kind="heat hot" if heat >= 0 else "heat cold", heat=round(heat, 3))
