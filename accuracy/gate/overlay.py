"""Growth over the world size, run and baseline in one picture: x_single_device of every tensor, a line a variant."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from accuracy.chart import drawing, mark
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Panel, Table, cells
from accuracy.chart.view import Key as Legend
from accuracy.core import fields
from accuracy.core.number import plain
from accuracy.gate.decision import Decision
from accuracy.gate.item import FAILED
from accuracy.results.cell import KEYS, Cell, Key
from accuracy.results.table import ALL_TENSORS

MOST_PANELS = 4
_MARK = '<svg class="mark ink" viewBox="0 0 24 14" width="24" height="14" aria-hidden="true">'
BASELINE_KEY = Legend(
    "baseline", "base", Markup(f'{_MARK}<path class="mark-line" d="M0 7h24" stroke-dasharray="1.5 2.5"/></svg>')
)
FAILED_KEY = Legend(
    "failed",
    "failed",
    Markup(f'{_MARK}<circle cx="12" cy="7" r="5.5" fill="none" stroke="var(--bad)" stroke-width="2"/></svg>'),
)
_LINE = fields.names(fields.VARIANT, fields.PRECISION, fields.KERNEL)
_AXES = ("world_size", "tensor")  # within a panel: along a line, and chart by chart
_PICTURE = ("dtype", *(name for name in KEYS if name not in (*_LINE, *_AXES, "dtype")))


class _Point(NamedTuple):
    """One cell of the run, which has numbers, and of the baseline, where it has some."""

    setting: str  # the label of its panel
    line: str
    variant: str
    tensor: str
    size: int
    run: Cell
    baseline: Cell | None
    failed: bool


def panels(decision: Decision) -> list[Panel]:
    """A panel a dtype and problem, the first few; settings of one world size only have no growth and none."""
    cells = [
        (item.key, item.cell, item.baseline, item.state == FAILED) for item in decision.items if item.key and item.cell
    ]
    varying = _varying([key for key, *_ in cells])
    points = [
        _Point(
            _label(key, _PICTURE, varying), _label(key, _LINE, varying), str(_get(key, "variant")),
            str(_get(key, "tensor")), int(cell.get("world_size")), cell, old if old and old.y else None, failed,
        )
        for key, cell, old, failed in cells
        if cell.y and _get(key, "variant") != "single_device"
    ]  # fmt: skip
    points.sort(key=lambda point: (point.line, point.size))
    slots = mark.slots({point.line: point.variant for point in points})
    found: list[Panel] = []
    for setting in sorted({point.setting for point in points}):
        here = [point for point in points if point.setting == setting]
        if len({(point.line, point.tensor) for point in here}) < len(here):
            found.append(_panel(f"overlay{len(found)}", setting, here, slots))
    return found[:MOST_PANELS]


def _varying(keys: Sequence[Key]) -> list[str]:
    """What tells panels and lines apart; a setting of a variant, only where that variant has several."""
    alike = {name: {(_get(key, "variant"), _get(key, name)) for key in keys} for name in _LINE}
    variants = {_get(key, "variant") for key in keys}
    found = [name for name in fields.names(fields.VARIANT) if len(alike[name]) > len(variants)]
    others = [name for name in KEYS if name not in fields.names(fields.VARIANT)]
    return found + [name for name in others if len({_get(key, name) for key in keys}) > 1]


def _get(key: Key, name: str) -> object:
    return key[KEYS.index(name)]


def _label(key: Key, names: Sequence[str], varying: Sequence[str]) -> str:
    row = dict(zip(KEYS, key, strict=True))
    return fields.label(row, [names[0], *(name for name in names[1:] if name in varying)])


def _panel(slug: str, setting: str, points: Sequence[_Point], slots: Mapping[str, int]) -> Panel:
    legend = [mark.series_key(line, slots[line]) for line in dict.fromkeys(point.line for point in points)]
    if any(point.baseline for point in points):
        legend.append(BASELINE_KEY)
    if any(point.failed for point in points):
        legend.append(FAILED_KEY)
    by_tensor = {name: [point for point in points if point.tensor == name] for name in ALL_TENSORS}
    charts = [_chart(f"{slug}-{tensor}", tensor, some, slots) for tensor, some in by_tensor.items() if some]
    return Panel(slug, setting, legend=tuple(legend), charts=tuple(charts), data=(_table(setting, points),))


def _chart(identity: str, tensor: str, points: Sequence[_Point], slots: Mapping[str, int]) -> Chart:
    axes = drawing.new_axes(tensor, "world size W")
    ratios = [cell.ratio for point in points for cell in (point.run, point.baseline) if cell]
    drawing.log_y(axes, [1.0, *ratios])
    places = [float(place) for place in axes.get_yticks()]
    drawing.fix_ticks(axes.yaxis, places, [plain(place, 2) for place in places])
    drawing.world_x(axes, [point.size for point in points])
    axes.axhline(1.0, color=drawing.SINGLE_DEVICE, linewidth=1.1, linestyle=(0, (6, 3)), zorder=1.5)
    lines = {line: list(some) for line, some in groupby(points, key=lambda point: point.line)}
    for line, some in lines.items():
        _draw(axes, some, slots[line])
    title = f"Error over single device's of {tensor} over world size, {points[0].setting}, run and baseline"
    said = []
    for *_, last in lines.values():
        before = f", baseline {plain(last.baseline.ratio)}" if last.baseline else ""
        said.append(f"{last.line} {plain(last.run.ratio)} at {last.size}{before}")
    return Chart(to_svg(axes, identity, title, f"{'; '.join(said)}."), title)


def _draw(axes: Axes, points: Sequence[_Point], slot: int) -> None:
    """A line with markers, in a faint band over its seeds; dotted below it, the baseline."""
    colour = drawing.series_colour(slot)
    if old := {point.size: point.baseline.ratio for point in points if point.baseline}:
        axes.plot(
            list(old), list(old.values()), color=colour, linewidth=1.6, linestyle=(0, (1.2, 1.6)),
            zorder=1.9, clip_on=False,
        )  # fmt: skip
    places, ratios = [point.size for point in points], [point.run.ratio for point in points]
    low, high = (np.exp([limit(point.run.y.values()) for point in points]) for limit in (min, max))
    axes.fill_between(places, low, high, color=colour, alpha=0.14, linewidth=0, clip_on=False)
    axes.plot(
        places, ratios, color=colour, marker=mark.marker(slot), markersize=4, linewidth=1.5, clip_on=False,
    )  # fmt: skip
    if bad := {point.size: point.run.ratio for point in points if point.failed}:
        drawing.marked(axes, bad, bad.values())


def _table(setting: str, points: Sequence[_Point]) -> Table:
    tensors = [tensor for tensor in ALL_TENSORS if any(point.tensor == tensor for point in points)]
    rows = []
    for (line, size), some in groupby(points, key=lambda point: (point.line, point.size)):
        texts = {
            point.tensor: " / ".join(plain(cell.ratio) for cell in (point.run, point.baseline) if cell)
            for point in some
        }
        rows.append(cells(line, size, *(texts.get(tensor, "") for tensor in tensors)))
    head = ("variant", "world size", *tensors)
    return Table(f"Error over single device's, run / baseline, {setting}", head, tuple(rows))
