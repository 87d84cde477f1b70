"""Growth over the world size, run and baseline in one picture: x_single_device of every tensor, a line a variant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from accuracy.results.cell import KEYS, Cell, Key
from accuracy.results.table import TENSORS

MOST_PANELS = 4
_LINE = fields.names(fields.VARIANT, fields.PRECISION, fields.KERNEL)
_AXES = ("world_size", "tensor")  # within a panel: along a line, and chart by chart
_PICTURE = ("dtype", *(name for name in KEYS if name not in (*_LINE, *_AXES, "dtype")))


@dataclass(frozen=True)
class _Setting:
    """What one panel shows: cells of run and baseline by (line, tensor) and world size."""

    label: str
    run: Mapping[tuple[str, str], Mapping[int, Cell]]
    baseline: Mapping[tuple[str, str], Mapping[int, Cell]]


def panels(decision: Decision) -> list[Panel]:
    """A panel a dtype and problem, the first few; settings of one world size only have no growth and none."""
    own = {item.key: item.cell for item in decision.items if item.key and item.cell}
    old = {item.key: item.baseline for item in decision.items if item.key and item.baseline}
    varying = _varying([*own, *old])
    labels = sorted({_label(key, _PICTURE, varying) for key in own})
    lines = sorted({_label(key, _LINE, varying) for key in (*own, *old) if _get(key, "variant") != "single_device"})
    slots = {line: place for place, line in enumerate(lines, 1)}
    found = []
    for place, label in enumerate(labels):
        setting = _Setting(label, _by_line(own, label, varying), _by_line(old, label, varying))
        if any(len(sizes) > 1 for sizes in setting.run.values()):
            found.append(_panel(f"overlay{place}", setting, slots))
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


def _by_line(found: Mapping[Key, Cell], label: str, varying: Sequence[str]) -> dict[tuple[str, str], dict[int, Cell]]:
    lines: dict[tuple[str, str], dict[int, Cell]] = {}
    for key, cell in found.items():
        if cell.y and _get(key, "variant") != "single_device" and _label(key, _PICTURE, varying) == label:
            line = (_label(key, _LINE, varying), str(_get(key, "tensor")))
            lines.setdefault(line, {})[int(cell.get("world_size"))] = cell
    return lines


def _panel(slug: str, setting: _Setting, slots: Mapping[str, int]) -> Panel:
    present = {line for line, _ in setting.run}
    legend = [mark.series_key(line, slot) for line, slot in slots.items() if line in present]
    tensors = [tensor for tensor in TENSORS if any(name == tensor for _, name in setting.run)]
    return Panel(
        slug=slug,
        label=setting.label,
        legend=(*legend, *([_baseline_key()] if setting.baseline else [])),
        charts=tuple(_chart(slug, setting, tensor, slots) for tensor in tensors),
        data=(_table(setting, tensors),),
    )


def _baseline_key() -> Legend:
    drawn = '<svg class="mark ink" viewBox="0 0 24 14" width="24" height="14" aria-hidden="true">'
    return Legend(
        "baseline", "base", Markup(f'{drawn}<path class="mark-line" d="M0 7h24" stroke-dasharray="1.5 2.5"/></svg>')
    )


def _chart(slug: str, setting: _Setting, tensor: str, slots: Mapping[str, int]) -> Chart:
    axes = drawing.new_axes(tensor, "world size W")
    run = {line: sizes for (line, name), sizes in setting.run.items() if name == tensor}
    old = {line: sizes for (line, name), sizes in setting.baseline.items() if name == tensor}
    every = [sizes for lines in (run, old) for sizes in lines.values()]
    drawing.log_y(axes, [1.0, *(cell.ratio for sizes in every for cell in sizes.values())])
    places = [float(place) for place in axes.get_yticks()]
    drawing.fix_ticks(axes.yaxis, places, [plain(place, 2) for place in places])
    drawing.world_x(axes, [size for sizes in every for size in sizes])
    axes.axhline(1.0, color=drawing.SINGLE_DEVICE, linewidth=1.1, linestyle=(0, (6, 3)), zorder=1.5)
    for line, sizes in sorted(old.items()):
        _draw(axes, sizes, slots[line], baseline=True)
    for line, sizes in sorted(run.items()):
        _draw(axes, sizes, slots[line], baseline=False)
    title = f"Error over single device's of {tensor} over world size, {setting.label}, run and baseline"
    said = "; ".join(_said(line, sizes, old.get(line, {})) for line, sizes in sorted(run.items()))
    return Chart(to_svg(axes, f"{slug}-{tensor}", title, f"{said}."), title)


def _said(line: str, sizes: Mapping[int, Cell], old: Mapping[int, Cell]) -> str:
    largest = max(sizes)
    before = f", baseline {plain(old[largest].ratio)}" if largest in old else ""
    return f"{line} {plain(sizes[largest].ratio)} at {largest}{before}"


def _draw(axes: Axes, sizes: Mapping[int, Cell], slot: int, baseline: bool) -> None:
    """The run as a line with markers; the baseline as a wide faint band under it, so that equal ones show both."""
    places = sorted(sizes)
    values = [sizes[place].ratio for place in places]
    colour = drawing.series_colour(slot)
    if baseline:
        axes.plot(places, values, color=colour, linewidth=1.6, linestyle=(0, (1.2, 1.6)), alpha=0.9, clip_on=False)
        return
    low = [float(np.exp(min(sizes[place].y.values()))) for place in places]
    high = [float(np.exp(max(sizes[place].y.values()))) for place in places]
    axes.fill_between(places, low, high, color=colour, alpha=0.14, linewidth=0, clip_on=False)
    axes.plot(
        places, values, color=colour, marker=mark.marker(slot), markersize=4, linewidth=1.5, linestyle=mark.dash(slot),
        clip_on=False,
    )  # fmt: skip


def _table(setting: _Setting, tensors: Sequence[str]) -> Table:
    """The charts' points: run, and the baseline after a stroke."""
    keys = sorted({(line, size) for (line, _), sizes in setting.run.items() for size in sizes})
    rows = []
    for line, size in keys:
        texts = []
        for tensor in tensors:
            new = setting.run.get((line, tensor), {}).get(size)
            old = setting.baseline.get((line, tensor), {}).get(size)
            texts.append(" / ".join(plain(cell.ratio) for cell in (new, old) if cell is not None))
        rows.append(cells(line, size, *texts))
    return Table(
        f"Error over single device's, run / baseline, {setting.label}", ("variant", "world size", *tensors), tuple(rows)
    )
