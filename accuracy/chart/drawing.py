"""What do all charts look like? Axes, ticks and colours, drawn by matplotlib, and written into the page as SVG.

Colours are stand-ins that become CSS variables, so a chart follows the page into the dark. No untrusted text is drawn.
"""

import io
import math
import re
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
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


def to_svg(axes: Axes, name: str, title: str, description: str) -> Markup:
    """The figure of `axes` as an `<svg role="img">`. name: an identifier, unique in the page."""
    buffer = io.StringIO()
    with mpl.rc_context(SETTINGS):
        FigureCanvasSVG(axes.get_figure(root=True)).print_svg(buffer, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _strip_namespaces(root)
    root[:] = [child for child in root if child.tag not in ("metadata", "defs")]
    uses = dict.fromkeys(element.get("href", "").removeprefix("#") for element in root.iter("use"))
    used = {identifier: f"{name}-{place}" for place, identifier in enumerate(uses)}
    for element in root.iter():
        _simplify(element, used)
    content = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    return Markup(
        f'<svg class="chart" role="img" aria-labelledby="{name}-t {name}-d" viewBox="{root.get("viewBox")}">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(description)}</desc>'
        f"{content}</svg>"
    )


def _strip_namespaces(root: Element) -> None:
    """`{http://www.w3.org/2000/svg}g` -> `g`: inside HTML they are implied."""
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for key in [key for key in element.attrib if "}" in key]:
            element.set(key.rpartition("}")[2], element.attrib.pop(key))
        element.tail = None
        if element.tag != "text":
            element.text = None


def _simplify(element: Element, used: dict[str, str]) -> None:
    """Page colours and fonts, short coordinates, private identifiers; the ids of series become classes."""
    identifier = element.attrib.pop("id", "")
    if identifier in used:
        element.set("id", used[identifier])
    elif re.fullmatch(r"s\d+|single-device", identifier):
        element.set("class", identifier)
    if element.get("transform", "").startswith("rotate(-0"):
        del element.attrib["transform"]
    if "href" in element.attrib:
        element.set("href", f"#{used[element.attrib['href'][1:]]}")
    if "style" in element.attrib:
        element.set("style", _page_style(element.attrib["style"]))
    for key in {"x", "y", "d"} & element.attrib.keys():  # to a tenth of a point
        element.set(key, " ".join(re.sub(r"(\d\.\d)\d+", r"\1", element.attrib[key]).split()))


def _page_style(style: str) -> str:
    style = re.sub(r"#fe0[01][0-9a-f]{2}", lambda found: f"var(--{VARIABLES[found[0]]})", style)
    style = re.sub(r"font: (bold |700 )?([\d.]+)px [^;]*", _font, style)
    style = re.sub(r"; ?font-family: [^;]*|; ?stroke-line(?:join|cap): \w+", "", style)
    return style.replace(": ", ":").replace("; ", ";")


def _font(found: re.Match[str]) -> str:
    return f"font-size:{found[2]}px" + (";font-weight:600" if found[1] else "")
