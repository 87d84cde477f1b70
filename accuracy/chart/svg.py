"""How does a matplotlib figure become inline SVG that is deterministic, and right in light and dark?

matplotlib's stand-in colours become CSS variables, its fonts the page's, its identifiers private to the figure. The
text alternative (`title`, `desc`) comes in.
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
