"""Section: how does the error grow with the number of ranks, for every tensor and variant?"""

import math
from typing import Any

import numpy as np
import pandas as pd

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, TableCell, grid
from accuracy.core.number import MISSING, geometric_mean, scientific, signed
from accuracy.report.series import Facet
from accuracy.verdict.growth import FLAT, Growth, fit_growth

_Fits = dict[tuple[str, str], Growth | str]
"""By series and tensor: the fit, or why there is none."""


def growth_panel(facet: Facet, drawn: Facet, slots: dict[str, int]) -> Panel:
    """A chart per tensor, the fitted exponents, the numbers behind; the numbers alone where no series has two world
    sizes. drawn: the facet with the series of the charts; the tables have all."""
    points: Any = facet.whole.groupby(["series", "world_size", "tensor"])["error_rel"].agg(
        middle=geometric_mean, low="min", high="max"
    )
    slug, numbers = f"growth-{facet.slug}", (_numbers(facet, points),)
    if points.groupby(level=["series", "tensor"]).size().max() < 2:
        note = "Every variant was measured at one world size: there is no growth to draw."
        return Panel(slug, facet.label, note, data=numbers)
    groups = facet.whole.groupby(["series", "tensor"])
    fits: _Fits = {
        (str(label), str(tensor)): fit_growth(zip(rows["world_size"], rows["error_rel"], strict=True))
        for (label, tensor), rows in groups
    }
    fitted = any(isinstance(fit, Growth) for fit in fits.values())
    legend = [mark.series_key(label, slots[label]) for label in drawn.series]
    return Panel(
        slug,
        facet.label,
        note="" if fitted else "No exponent is fitted: there are too few world sizes of two or more.",
        legend=(*legend, *map(mark.reference_key, mark.REFERENCES)),
        charts=tuple(_chart(drawn, tensor, points.xs(tensor, level="tensor"), slots) for tensor in facet.tensors),
        tables=(_exponents(facet, fits),) if fitted else (),
        data=numbers,
    )


def _chart(drawn: Facet, tensor: str, points: pd.DataFrame, slots: dict[str, int]) -> Chart:
    rows = drawn.whole[drawn.whole["tensor"] == tensor]
    labels = [label for label in drawn.series if label in points.index]
    lines = {label: points.loc[label] for label in labels}
    floor = geometric_mean(rows["floor_rel"])
    single_device = [geometric_mean(group["single_device_rel"]) for _, group in rows.groupby("kernel")]
    axes = drawing.new_axes(tensor, "world size W")
    errors = [value for found in lines.values() for value in (*found["low"], *found["high"])]
    drawing.log_y(axes, [floor, *single_device, *errors])
    drawing.world_x(axes, [size for found in lines.values() for size in found.index] or [1])
    for css, values in (("floor", [floor]), ("single-device", single_device)):
        for value in values:
            if value > 0 and math.isfinite(value):
                axes.axhline(value, **drawing.REFERENCES[css], zorder=1.5, clip_on=False)
    for place, (label, found) in enumerate(lines.items()):
        width = (len(lines) - place) / len(lines)  # less for each later line: equal ones show through each other
        look = {"markersize": 3.2 + 1.8 * width, "linewidth": 1.0 + 1.3 * width}
        drawing.line(axes, found.index, found["middle"], slots[label], **look)
        spread = (found["low"] < found["high"]) & (found["low"] > 0) & np.isfinite(found["high"])
        if spread.any():
            band = axes.fill_between(
                found.index, found["low"], found["high"], where=spread, color=drawing.series_colour(slots[label]),
                alpha=0.16, linewidth=0, clip_on=False,
            )  # fmt: skip
            band.set_gid(f"s{slots[label]}_band")
    title = f"Relative error of {tensor} over world size, {drawn.label}"
    described = "; ".join(
        f"{label} {scientific(found['middle'].iloc[0])} at {found.index[0]} to "
        f"{scientific(found['middle'].iloc[-1])} at {found.index[-1]}"
        for label, found in lines.items()
    )
    references = f"single-device kernel {', '.join(map(scientific, single_device))}; floor {scientific(floor)}"
    svg = to_svg(axes, f"growth-{drawn.slug}-{tensor}", title, f"Log-log. {described}; {references}.")
    return Chart(svg, title)


def _exponents(facet: Facet, fits: _Fits) -> Table:
    caption = f"Fitted growth exponents, {facet.label}: error ~ W^p with the 95% interval of p"
    keys = [(label, tensor) for label in facet.series for tensor in facet.tensors]
    return grid(caption, ["variant"], facet.tensors, {key: _exponent_cell(fits.get(key)) for key in keys})


def _exponent_cell(growth: Growth | str | None) -> TableCell:
    if isinstance(growth, Growth):
        interval = f"[{signed(growth.low)}, {signed(growth.high)}]\n{growth.word}"
        kind = "alarm" if growth.low > FLAT else ""
        return TableCell(signed(growth.exponent), interval, kind, hint=f"{growth.points} points")
    return TableCell(MISSING, kind="absent", hint=growth or "not measured")


def _numbers(facet: Facet, points: pd.DataFrame) -> Table:
    """The charts' points: geometric mean over seeds, with the range where it is wider than what is shown."""
    texts = {}
    for key, *errors in points.reindex(facet.series, level="series").itertuples():
        middle, low, high = map(scientific, errors)
        texts[key] = middle if low == high else f"{middle} ({low} to {high})"
    caption = f"Relative error against float64, {facet.label}: geometric mean over seeds (least to greatest)"
    return grid(caption, ("variant", "world size"), facet.tensors, texts)
