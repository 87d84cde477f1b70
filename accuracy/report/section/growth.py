"""Section: how does the error grow with the number of ranks, for every tensor and variant?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, TableCell, cells
from accuracy.core.number import MISSING, as_float, geometric_mean, scientific, signed
from accuracy.report.series import Facet
from accuracy.verdict.growth import FLAT, Growth, fit_growth


@dataclass(frozen=True)
class Line:
    """A series over the world size: geometric mean, least and greatest error over the seeds."""

    label: str
    sizes: list[int]
    middle: list[float]
    low: list[float]
    high: list[float]
    growth: Growth | str

    @property
    def text(self) -> str:
        """`ring 1.2e-3 at 1 to 1.5e-3 at 64`: for the chart's description."""
        first, last = scientific(self.middle[0]), scientific(self.middle[-1])
        return f"{self.label} {first} at {self.sizes[0]} to {last} at {self.sizes[-1]}"


def growth_panel(facet: Facet, drawn: Facet, slots: dict[str, int]) -> Panel:
    """The growth of one facet: a chart per tensor, the fitted exponents, the numbers behind; the numbers alone where
    no series has two world sizes. drawn: the facet with the series of the charts; the tables have all.
    """
    lines = {tensor: lines_of(facet, tensor) for tensor in facet.tensors}
    plain = Panel(f"growth-{facet.slug}", facet.label, data=(_numbers(facet, lines),))
    if not any(len(line.sizes) > 1 for found in lines.values() for line in found):
        return replace(plain, note="Every variant was measured at one world size: there is no growth to draw.")
    charts = tuple(
        _chart(drawn, tensor, [line for line in lines[tensor] if line.label in drawn.series], slots)
        for tensor in facet.tensors
    )
    legend = [mark.series_key(label, slots[label]) for label in drawn.series]
    legend += [mark.reference_key(label) for label in mark.REFERENCES]
    fitted = any(isinstance(line.growth, Growth) for found in lines.values() for line in found)
    return replace(
        plain,
        note="" if fitted else "No exponent is fitted: there are too few world sizes of two or more.",
        legend=tuple(legend),
        charts=charts,
        tables=(_exponents(facet, lines),) if fitted else (),
    )


def lines_of(facet: Facet, tensor: str) -> list[Line]:
    """One line per series of one tensor's rows over all ranks."""
    rows = facet.whole.loc[facet.whole["tensor"] == tensor, ["series", "world_size", "error_rel"]]
    lines = []
    for label, found in rows.groupby("series"):
        by_size = [
            (int(as_float(size)), group["error_rel"].map(as_float)) for size, group in found.groupby("world_size")
        ]
        points = zip(found["world_size"].map(as_float), found["error_rel"].map(as_float), strict=True)
        lines.append(
            Line(
                label=str(label),
                sizes=[size for size, _ in by_size],
                middle=[geometric_mean(errors) for _, errors in by_size],
                low=[float(errors.min()) for _, errors in by_size],
                high=[float(errors.max()) for _, errors in by_size],
                growth=fit_growth(points),
            )
        )
    return sorted(lines, key=lambda line: facet.series.index(line.label))


def drawable(places: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The points that a logarithmic axis can show: positive and finite."""
    kept = [(x, y) for x, y in zip(places, values, strict=True) if y > 0 and math.isfinite(y)]
    return [x for x, _ in kept], [y for _, y in kept]


def _chart(facet: Facet, tensor: str, lines: list[Line], slots: dict[str, int]) -> Chart:
    axes = drawing.new_axes(tensor, "world size W")
    rows = facet.whole[facet.whole["tensor"] == tensor]
    floor = geometric_mean(rows["floor_rel"])
    single_device = [geometric_mean(group["single_device_rel"]) for _, group in rows.groupby("kernel")]
    drawing.log_y(axes, [floor, *single_device, *(value for line in lines for value in line.low + line.high)])
    drawing.world_x(axes, [size for line in lines for size in line.sizes] or [1])
    _reference(axes, [floor], drawing.FLOOR, "floor", (0, (1.2, 2)))
    _reference(axes, single_device, drawing.SINGLE_DEVICE, "single-device", (0, (6, 3)))
    for place, line in enumerate(lines):
        _draw(axes, line, slots[line.label], (len(lines) - place) / len(lines))
    title = f"Relative error of {tensor} over world size, {facet.label}"
    described = "; ".join(line.text for line in lines)
    references = f"single-device kernel {', '.join(map(scientific, single_device))}; floor {scientific(floor)}"
    name = f"growth-{facet.slug}-{tensor}"
    return Chart(to_svg(axes, name, title, f"Log-log. {described}; {references}."), title)


def _reference(axes: Axes, values: list[float], colour: str, css: str, dash: object) -> None:
    for value in values:
        if value > 0 and math.isfinite(value):
            axes.axhline(value, color=colour, linewidth=1.1, linestyle=dash, gid=css, zorder=1.5, clip_on=False)


def _draw(axes: Axes, line: Line, slot: int, width: float) -> None:
    """width: 1 for the first line, less for each later one, so that equal lines show through each other."""
    colour = drawing.series_colour(slot)
    places, values = drawable(line.sizes, line.middle)
    axes.plot(
        places,
        values,
        color=colour,
        marker=mark.marker(slot),
        markersize=3.2 + 1.8 * width,
        linewidth=1.0 + 1.3 * width,
        linestyle=mark.dash(slot),
        gid=f"s{slot}",
        clip_on=False,
    )
    spread = [low < high and low > 0 and math.isfinite(high) for low, high in zip(line.low, line.high, strict=True)]
    if any(spread):
        band = axes.fill_between(
            line.sizes,
            line.low,
            line.high,
            where=spread,
            color=colour,
            alpha=0.16,
            linewidth=0,
            clip_on=False,
        )
        band.set_gid(f"s{slot}_band")


def _exponents(facet: Facet, lines: dict[str, list[Line]]) -> Table:
    """Fitted exponents, series x tensors."""
    found = {(tensor, line.label): line.growth for tensor in lines for line in lines[tensor]}
    rows = tuple(
        cells(label, *(_exponent_cell(found.get((tensor, label))) for tensor in facet.tensors))
        for label in facet.series
    )
    return Table(
        f"Fitted growth exponents, {facet.label}: error ~ W^p with the 95% interval of p",
        ("variant", *facet.tensors),
        rows,
    )


def _exponent_cell(growth: Growth | str | None) -> TableCell:
    if isinstance(growth, Growth):
        interval = f"[{signed(growth.low)}, {signed(growth.high)}]\n{growth.word}"
        kind = "alarm" if growth.low > FLAT else ""
        return TableCell(signed(growth.exponent), interval, kind, hint=f"{growth.points} points")
    return TableCell(MISSING, kind="absent", hint=growth or "not measured")


def _numbers(facet: Facet, lines: dict[str, list[Line]]) -> Table:
    """The charts' points: geometric mean over seeds, with the range where it is wider than what is shown."""
    texts: dict[tuple[str, int, str], str] = {}
    for tensor, found in lines.items():
        for line in found:
            for place, size in enumerate(line.sizes):
                low, high = scientific(line.low[place]), scientific(line.high[place])
                middle = scientific(line.middle[place])
                texts[line.label, size, tensor] = middle if low == high else f"{middle} ({low} to {high})"
    keys = dict.fromkeys((label, size) for label, size, _ in texts)
    order = {label: place for place, label in enumerate(facet.series)}
    rows = tuple(
        cells(label, size, *(texts.get((label, size, tensor), MISSING) for tensor in facet.tensors))
        for label, size in sorted(keys, key=lambda key: (order[key[0]], key[1]))
    )
    caption = f"Relative error against float64, {facet.label}: geometric mean over seeds (least to greatest)"
    return Table(caption, ("variant", "world size", *facet.tensors), rows)
