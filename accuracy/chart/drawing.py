"""What do all charts look like? Axes, ticks and colours, drawn by matplotlib; `svg.py` writes them into
the page.

Colours are stand-ins that become CSS variables, so a chart follows the page into the dark. No untrusted
text is drawn.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from accuracy.chart import mark

INK, SOFT, RULE, SINGLE_DEVICE, FLOOR, BORDER = "#fe0101", "#fe0102", "#fe0103", "#fe0104", "#fe0105", "#fe0106"
VARIABLES = {INK: "ink", SOFT: "soft", RULE: "rule", SINGLE_DEVICE: "single-device", FLOOR: "floor", BORDER: "border"}
VARIABLES |= {f"#fe000{index}": f"series-{index}" for index in range(mark.COLOURS)}
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "accuracy",
    "font.size": 9,
    "axes.linewidth": 0.6,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "text.parse_math": False,
}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MARGINS_INCH = {"left": 0.56, "right": 0.1, "top": 0.28, "bottom": 0.42}


def series_colour(slot: int) -> str:
    """The stand-in for a series' colour."""
    colour = mark.colour(slot)
    return INK if colour is None else f"#fe000{colour}"


def new_axes(title: str, x_label: str, width: float = 3.9, height: float = 2.75) -> Axes:
    """One set of axes in its own figure, width x height in inch."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes(
            (
                MARGINS_INCH["left"] / width,
                MARGINS_INCH["bottom"] / height,
                1 - (MARGINS_INCH["left"] + MARGINS_INCH["right"]) / width,
                1 - (MARGINS_INCH["top"] + MARGINS_INCH["bottom"]) / height,
            ),
        )
    for patch in (figure.patch, axes.patch):
        patch.set_visible(False)
    middle = (MARGINS_INCH["left"] + width - MARGINS_INCH["right"]) / 2 / width
    figure.text(0, 1 - 0.13 / height, title, fontsize=10, fontweight="bold", color=INK, va="center")
    figure.text(middle, 0.08 / height, x_label, fontsize=9, color=SOFT, ha="center", va="center")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="x", width=0.6, length=3)
    axes.tick_params(axis="y", length=0)
    return axes


def fix_ticks(axis: object, places: Sequence[float], labels: Sequence[str]) -> None:
    """Ticks exactly here: matplotlib's own search for good places costs more than the drawing."""
    axis.set_major_locator(FixedLocator(list(places)))  # type: ignore[attr-defined]
    axis.set_major_formatter(FixedFormatter(list(labels)))  # type: ignore[attr-defined]
    axis.set_minor_locator(NullLocator())  # type: ignore[attr-defined]


def log_y(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic y axis around the positive finite values, with a grid."""
    axes.set_yscale("log")
    axes.set_ylim(*_log_limits(axes.yaxis, values))
    axes.grid(axis="y", color=RULE, linewidth=0.6, clip_on=False)
    axes.set_axisbelow(True)


def log_x(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic x axis around the positive finite values."""
    axes.set_xscale("log")
    axes.set_xlim(*_log_limits(axes.xaxis, values))


def _log_limits(axis: object, values: Iterable[float]) -> tuple[float, float]:
    """Sets the ticks; returns where the axis ends."""
    drawn = [value for value in values if value > 0 and math.isfinite(value)]
    low, high = (min(drawn), max(drawn)) if drawn else (0.1, 1.0)
    margin = max(0.08, 0.07 * math.log10(high / low))
    bottom, top = math.log10(low) - margin, math.log10(high) + margin
    places = _log_places(bottom, top)
    fix_ticks(axis, places, [_log_label(place) for place in places])
    return 10**bottom, 10**top


def _log_places(bottom: float, top: float) -> list[float]:
    decades = range(math.floor(bottom), math.ceil(top) + 1)
    for steps in (
        (1,),
        (1, 3),
        (1, 2, 5),
        (1, 1.5, 2, 3, 5, 7),
        (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8),
    ):
        places = [step * 10.0**decade for decade in decades for step in steps]
        inside = [place for place in places if bottom <= math.log10(place) <= top]
        if len(inside) >= 3:
            break
    stride = math.ceil(len(inside) / 6)
    return inside[::stride]


def _log_label(place: float) -> str:
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
    fix_ticks(axes.xaxis, shown, [str(size) for size in shown])
    axes.set_xlim(ordered[0] / 1.15, ordered[-1] * 1.15)
