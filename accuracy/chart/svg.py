"""How does a matplotlib figure become inline SVG that is small, deterministic, and right in light and dark?

matplotlib's stand-in colours become CSS variables, its fonts the page's, its identifiers private to the figure; groups
and styles that say nothing or say it again go. The text alternative (`title`, `desc`) comes in.
"""

import io
import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG

from accuracy.chart.drawing import SETTINGS, VARIABLES


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
    _unwrap(root)
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
    """Page colours and fonts, short paths, private identifiers; the ids of series become classes."""
    identifier = element.attrib.pop("id", "")
    if identifier in used:
        element.set("id", used[identifier])
    elif found := re.fullmatch(r"(s\d+|single-device|floor)(?:_band)?", identifier):
        element.set("class", found[1])
    if element.get("transform", "").startswith("rotate(-0"):
        del element.attrib["transform"]
    short = {
        "href": lambda href: f"#{used[href[1:]]}",
        "style": _page_style,
        "x": _short,
        "y": _short,
        "d": _short_path,
    }
    for key in short.keys() & element.attrib.keys():
        element.set(key, short[key](element.attrib[key]))


def _page_style(style: str) -> str:
    style = re.sub(r"#fe0[01][0-9a-f]{2}", lambda found: f"var(--{VARIABLES[found[0]]})", style)
    style = re.sub(r"font: (bold |700 )?([\d.]+)px [^;]*", _font, style)
    style = re.sub(r"; ?font-family: [^;]*|; ?stroke-line(?:join|cap): \w+", "", style)
    return style.replace(": ", ":").replace("; ", ";")


def _font(found: re.Match[str]) -> str:
    return f"font-size:{found[2]}px" + (";font-weight:600" if found[1] else "")


def _short(places: str) -> str:
    """Coordinates to a tenth of a point."""
    return " ".join(re.sub(r"(\d\.\d)\d+", r"\1", places).split())


def _short_path(path: str) -> str:
    """Straight lines as steps from point to point, in whole tenths so that no error adds up; curves as they are."""
    if not re.fullmatch(r"[MLz\d.\s-]*", path):
        return _short(path)
    return "".join(_steps(part) + ("z" if "z" in part else "") for part in path.split("M")[1:])


def _steps(part: str) -> str:
    places = [round(10 * float(number)) for number in re.findall(r"-?\d+(?:\.\d+)?", part)]
    steps = [now - before for before, now in zip(places, places[2:], strict=False)]
    return f"M{_tenths(places[:2])}" + (f"l{_tenths(steps)}" if steps else "")


def _tenths(numbers: list[int]) -> str:
    """`40.3 117.2`, `3.3-.4`: a sign separates as a space does, and a zero before the point says nothing."""
    texts = (f"{number / 10:g}" for number in numbers)
    return re.sub(r"(?<!\d)0\.", ".", " ".join(texts)).replace(" -", "-")


def _unwrap(parent: Element) -> None:
    """Groups without attributes dissolve, and what all drawn children say alike, their group says once."""
    flat: list[Element] = []
    for child in parent:
        _unwrap(child)
        empty = child.tag == "g" or (child.tag == "defs" and not len(child))
        flat.extend(list(child) if empty and not child.attrib else [child])
    parent[:] = flat
    styles = {child.get("style") for child in parent if child.tag != "defs"}
    if parent.tag == "g" and len(flat) > 2 and len(styles) == 1 and "style" not in parent.attrib and None not in styles:
        parent.set("style", str(styles.pop()))
        for child in parent:
            child.attrib.pop("style", None)
