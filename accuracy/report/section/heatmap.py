"""Section: how far is each variant from the reference, as a multiple of what the single-device kernel is?

Where nothing but kernels was run once, they are compared with the floor.
"""

import math

import pandas as pd

from accuracy.chart.view import Panel, Table, TableCell, cells
from accuracy.core.number import MISSING, as_float, geometric_mean, ratio
from accuracy.report.series import SINGLE_DEVICE, Facet

SATURATED_OCTAVES = 2.0  # a quarter of the single-device error, or four times it, has the full colour


def heatmap_panel(facet: Facet) -> Panel:
    """Every variant at its largest world size in the open, every world size as further tables."""
    largest, widest = facet.largest_world, facet.widest
    if facet.kernels_alone:
        caption = f"Error as a multiple of the floor, {facet.label}"
        return Panel(f"heatmap-{facet.slug}", facet.label, tables=(_table(facet, widest, caption, column="x_floor"),))
    caption = f"Error as a multiple of the single-device kernel's, {facet.label}, world size"
    sizes = sorted((int(size) for size in facet.whole["world_size"].unique()), reverse=True)
    further = [_table(facet, facet.whole[facet.whole["world_size"] == size], f"{caption} {size}") for size in sizes]
    return Panel(
        f"heatmap-{facet.slug}",
        facet.label,
        tables=(_table(facet, widest[widest["variant"] != SINGLE_DEVICE], f"{caption} {largest}", largest),),
        data=tuple(further[1:]),
    )


def _table(
    facet: Facet, rows: pd.DataFrame, caption: str, expected: int | None = None, column: str = "x_single_device"
) -> Table:
    """Series x tensors; a series at another world size than `expected` says so."""
    ratios = rows.groupby(["series", "tensor"])[column].agg(geometric_mean)
    sizes = rows.groupby("series")["world_size"].max().to_dict()
    body = []
    for label in facet.series:
        if label in sizes:
            name = label if expected in (None, sizes[label]) else f"{label} (world size {sizes[label]})"
            body.append(cells(name, *(heat_cell(ratios.get((label, tensor))) for tensor in facet.tensors)))
    return Table(caption, ("variant", *facet.tensors), tuple(body))


def heat_cell(value: object) -> TableCell:
    """A ratio with its colour: logarithmic, none at 1."""
    number = as_float(value)
    if math.isnan(number):
        return TableCell(MISSING, kind="absent", hint="not defined or not measured")
    if math.isinf(number):
        return TableCell(
            "∞", kind="heat infinite", heat=1.0, hint="not finite, or the single-device kernel's error is zero"
        )
    octaves = math.log2(number) if number > 0 else -SATURATED_OCTAVES
    heat = max(-1.0, min(1.0, octaves / SATURATED_OCTAVES))
    return TableCell(ratio(number), kind="heat hot" if heat >= 0 else "heat cold", heat=round(heat, 3))


def worst_cells(whole: pd.DataFrame, most: int = 8) -> pd.DataFrame:
    """The cells (series, facet, world size, tensor) furthest from single device; geometric mean over seeds."""
    keys = ["series", "facet", "dtype", "world_size", "tensor"]
    table = (
        whole.groupby(keys, sort=True)[["x_single_device", "error_rel", "x_floor"]].agg(geometric_mean).reset_index()
    )
    finite = table[table["x_single_device"].map(math.isfinite).astype(bool)]
    return finite.sort_values(["x_single_device", *keys], ascending=False, kind="stable").head(most)
