"""What do all charts look like? Axes, ticks and colours, drawn by matplotlib; `svg.py` writes them into the page.

Colours are stand-ins that become CSS variables, so a chart follows the page into the dark. No untrusted text is drawn.
"""

import math
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from accuracy.chart import mark

INK, SOFT, RULE, SINGLE_DEVICE, FLOOR = (f"#fe010{place}" for place in range(1, 6))
VARIABLES = {INK: "ink", SOFT: "soft", RULE: "rule", SINGLE_DEVICE: "single-device", FLOOR: "floor"}
VARIABLES |= {f"#fe00{index:02x}": f"series-{index}" for index in range(mark.COLOURS)}
REFERENCE: dict[str, Any] = {  # the line at 1; its gid is its class in the page
    "color": SINGLE_DEVICE, "linestyle": (0, (6, 3)), "linewidth": 1.1, "gid": "single-device",
}  # fmt: skip
SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "accuracy", "font.size": 9, "axes.linewidth": 0.6}
SETTINGS |= dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), SOFT)
SETTINGS |= {"text.color": INK, "text.parse_math": False}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.56, 0.1, 0.28, 0.42  # margins in inch
_FAR = 4.0  # decades, from which on powers of ten are read faster than plain numbers
_STEPS_OF_A_DECADE = (
    (1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8),
)  # fmt: skip


def series_colour(slot: int) -> str:
    """The stand-in for a series' colour."""
    colour = mark.colour(slot)
    return INK if colour is None else f"#fe00{colour:02x}"


def new_axes(
    title: str, x_label: str, width: float = 3.9, height: float = 2.75, left: float = _LEFT, right: float = _RIGHT
) -> Axes:
    """One set of axes in its own figure, width x height in inch with these margins."""
    size = 1 - (left + right) / width, 1 - (_TOP + _BOTTOM) / height
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, _BOTTOM / height, *size))
    for patch in (figure.patch, axes.patch):
        patch.set_visible(False)
    figure.text(0, 1 - 0.13 / height, title, fontsize=10, fontweight="bold", color=INK, va="center")
    middle = (left + width - right) / 2 / width
    figure.text(middle, 0.08 / height, x_label, fontsize=9, color=SOFT, ha="center", va="center")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="x", width=0.6, length=3)
    axes.tick_params(axis="y", length=0)
    return axes


def line(axes: Axes, places: Iterable[float], values: Iterable[float], slot: int, **look: Any) -> None:
    """The finite points of a series, in its colour and with its marker."""
    points = [(x, y) for x, y in zip(places, values, strict=True) if math.isfinite(y)]
    usual = {"color": series_colour(slot), "marker": mark.marker(slot), "gid": f"s{slot}", "clip_on": False}
    axes.plot([x for x, _ in points], [y for _, y in points], **{**usual, **look})


def fix_ticks(axis: Any, places: Iterable[float], labels: Iterable[object] | None = None) -> None:
    """Ticks exactly here, labelled `{place:g}` by default: matplotlib's own search for good places costs more than the
    drawing."""
    places = list(places)
    axis.set_major_locator(FixedLocator(places))
    texts = [f"{place:g}" for place in places] if labels is None else list(map(str, labels))
    axis.set_major_formatter(FixedFormatter(texts))
    axis.set_minor_locator(NullLocator())


def ratio_y(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic y axis of ratios, with a grid: ticks are plain numbers."""
    axes.set_yscale("log")
    axes.set_ylim(*_ratio_limits(axes.yaxis, values))
    axes.grid(axis="y", color=RULE, linewidth=0.6, clip_on=False)
    axes.set_axisbelow(True)


def ratio_x(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic x axis of ratios."""
    axes.set_xscale("log")
    axes.set_xlim(*_ratio_limits(axes.xaxis, values))


def _ratio_limits(axis: object, values: Iterable[float]) -> tuple[float, float]:
    """Set the ticks of an axis, whose scale is set already; return where it ends."""
    drawn = [value for value in values if value > 0 and math.isfinite(value)] or [0.1, 1.0]
    margin = max(0.08, 0.07 * math.log10(max(drawn) / min(drawn)))
    bottom, top = math.log10(min(drawn)) - margin, math.log10(max(drawn)) + margin
    places = _ticks(bottom, top)
    fix_ticks(axis, places, [f"{place:.3g}" if top - bottom < _FAR else _power(place) for place in places])
    return 10**bottom, 10**top


def _ticks(bottom: float, top: float) -> list[float]:
    decades = range(math.floor(bottom), math.ceil(top) + 1)
    for steps in _STEPS_OF_A_DECADE:
        places = [step * 10.0**decade for decade in decades for step in steps]
        inside = [place for place in places if bottom <= math.log10(place) <= top]
        if len(inside) >= 3:
            break
    return inside[:: math.ceil(len(inside) / 6)]


def _power(place: float) -> str:
    mantissa, exponent = f"{place:.1e}".split("e")
    power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    return power if mantissa == "1.0" else f"{mantissa.removesuffix('.0')}·{power}"


def world_x(axes: Axes, sizes: Iterable[int]) -> None:
    """A logarithmic x axis with a tick at every world size, fewer where ticks would overlap."""
    ordered = sorted(set(sizes))
    axes.set_xscale("log")
    shown = [ordered[0]]
    for size in ordered[1:]:
        if size >= shown[-1] * (ordered[-1] / ordered[0]) ** 0.08:
            shown.append(size)
    fix_ticks(axes.xaxis, shown, shown)
    axes.set_xlim(ordered[0] / 1.15, ordered[-1] * 1.15)
