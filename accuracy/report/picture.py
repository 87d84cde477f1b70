"""The key picture: the worst tensor over the ranks, the worst line in its colour, the rest in grey, named at their
ends. Drawn beforehand: it needs no JavaScript and prints."""

import re
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from accuracy.chart import drawing
from accuracy.chart.drawing import to_svg
from accuracy.chart.view import Chart, Table, grid
from accuracy.core.number import plain, ratio

Points = list[tuple[float, float]]
WIDTH, HEIGHT, MARGIN = 4.9, 3.3, 1.75  # inch; at 390 px of screen its letters have 9 px
BESIDE = 0.7  # room for the last dot's number
BESIDE_PIXELS = 60  # of axes that are some 190 wide: such a number may not lie on the line at 1, nor on a name
MOST_LETTERS = 21  # that the margin holds in a wide font
ALIKE = 1.04  # ends within 4% share a label: their letters would lie on each other
LETTER = 0.052  # height of a label's line, of the axis
MOST_LINES = 40
MOST_BARS = 14
MOST_MARKED = 16  # points of a line that have room for a marker each, and for a logarithmic axis
MOST_TICKS = 8
_BOLD: dict[str, Any] = {"fontweight": "bold"}
_GREY: dict[str, Any] = {"color": drawing.FLOOR, "marker": "o", "markersize": 3, "linewidth": 1.1, "gid": None}
_FIRST: dict[str, Any] = {"linewidth": 2.4, "markersize": 5.5}
_TEXT: dict[str, Any] = {"va": "center", "fontsize": 9, "color": drawing.INK}


@dataclass(frozen=True)
class Picture:
    """title: what is drawn; along: the x axis; lines: by name, worst the one with a colour (of its slot)."""

    title: str
    along: str
    lines: dict[str, Points]
    worst: str
    slot: int


def lines_of(values: pd.Series) -> dict[str, Points]:
    """A line for each name. values: by (name, place)."""
    lines: dict[str, Points] = {}
    for name, place, value in values.reset_index().itertuples(index=False, name=None):
        lines.setdefault(str(name), []).append((float(place), float(value)))
    return lines


def draw(picture: Picture, name: str = "key-picture") -> Chart | None:
    """Lines where one has two points, else a dot each; None without a positive number. name: unique in the page."""
    positive = {name: [point for point in points if point[1] > 0] for name, points in picture.lines.items()}
    lines = {name: sorted(points) for name, points in positive.items() if points}
    if not lines:
        return None
    order = sorted(lines, key=lambda name: (name != picture.worst, -lines[name][-1][1]))
    grows = any(len(points) > 1 for points in picture.lines.values())
    axes = _lines(picture, lines, order[:MOST_LINES]) if grows else _dots(picture, lines, order[:MOST_BARS])
    ends = "; ".join(f"{name} {plain(lines[name][-1][1])} at {lines[name][-1][0]:g}" for name in order[:MOST_LINES])
    return Chart(to_svg(axes, name, picture.title, f"Logarithmic. {ends}."), picture.title)


def numbers(picture: Picture) -> Table:
    """The points of the picture, the worst line first."""
    order = sorted(picture.lines, key=lambda name: name != picture.worst)[:MOST_LINES]
    places = sorted({place for name in order for place, _ in picture.lines[name]})
    found = {(name, f"{place:g}"): plain(value) for name in order for place, value in picture.lines[name]}
    return grid(f"{picture.title}, by {picture.along}", ["variant"], [f"{place:g}" for place in places], found)


def _lines(picture: Picture, lines: dict[str, Points], shown: list[str]) -> Axes:
    axes = drawing.new_axes(picture.title, picture.along, WIDTH, HEIGHT, right=MARGIN)
    drawing.ratio_y(axes, [1.0, *(value for name in shown for _, value in lines[name])])
    places = sorted({place for name in shown for place, _ in lines[name]})
    if len(places) <= MOST_MARKED:
        drawing.world_x(axes, map(int, places))
    else:
        drawing.fix_ticks(axes.xaxis, places[:: -(-len(places) // MOST_TICKS)])
    axes.axhline(1.0, **drawing.REFERENCE, zorder=1)
    for name in reversed(shown):
        x, y = zip(*lines[name], strict=True)
        drawing.line(axes, x, y, picture.slot, **(_FIRST if name == picture.worst else _GREY))
    _label_ends(axes, lines, shown, picture.worst)
    return axes


def _label_ends(axes: Axes, lines: dict[str, Points], shown: list[str], worst: str) -> None:
    """At each end its ratio and its name, or how many share it; the worst in bold; never on each other."""
    groups: list[list[str]] = []
    for name in sorted(shown, key=lambda name: -lines[name][-1][1]):
        last = groups[-1] if groups else []
        near = last and lines[last[0]][-1][1] < ALIKE * lines[name][-1][1] and worst not in (name, *last)
        if near:
            last.append(name)
        else:
            groups.append([name])
    ends = [lines[group[0]][-1][1] for group in groups]
    names = [group[0] if len(group) == 1 else f"{len(group)} variants" for group in groups]
    texts = [wrap(f"{ratio(end)} {drawable(name)}") for end, name in zip(ends, names, strict=True)]
    wanted = [(axes.transData.transform((1, end))[1] - axes.bbox.y0) / axes.bbox.height for end in ends]
    for group, text, top in zip(groups, texts, _without_overlap(wanted, list(map(len, texts))), strict=True):
        for number, part in enumerate(text):
            height = top - LETTER * 1.15 * number
            axes.text(1.02, height, part, transform=axes.transAxes, **_TEXT, **(_BOLD if worst in group else {}))


def drawable(name: str) -> str:
    """A table's text is anyone's: letters, digits and a few signs are drawn, the rest is not."""
    return re.sub(r"[^\w .,=+@-]", "?", name.replace(" · ", " "), flags=re.ASCII)


def wrap(text: str, lines: int = 3) -> list[str]:
    """Lines of MOST_LETTERS at most, broken where a word ends; what does not fit ends in an ellipsis."""
    found = [""]
    for piece in re.findall(rf"[^\s,=_+]{{1,{MOST_LETTERS}}}[\s,=_+]*", text):
        if len((found[-1] + piece).rstrip()) > MOST_LETTERS:
            found.append("")
        found[-1] += piece
    whole = len(found) <= lines
    return [line.rstrip() for line in found] if whole else [*found[: lines - 1], found[lines - 1][:-1] + "…"]


def _without_overlap(wanted: list[float], heights: list[int]) -> list[float]:
    """From the top down, each at least its predecessor's lines below it; pushed back up from the bottom."""
    places: list[float] = []
    for place, above in zip(wanted, [0, *heights], strict=False):
        places.append(min(place, places[-1] - LETTER * 1.3 * above if places else 1.0))
    low = 0.0
    for index in reversed(range(len(places))):
        places[index] = max(places[index], low + LETTER * 1.15 * (heights[index] - 1))
        low = places[index] + LETTER * 1.3
    return places


def _dots(picture: Picture, lines: dict[str, Points], shown: list[str]) -> Axes:
    """No growth to draw: each variant a dot, the furthest on top."""
    texts = [wrap(drawable(name)) for name in shown]
    height = max(1.5, 0.62 + (0.12 + 0.14 * max(map(len, texts))) * len(shown))
    axes = drawing.new_axes(picture.title, "times (logarithmic)", WIDTH, height, left=MARGIN, right=BESIDE)
    drawing.ratio_x(axes, [1.0, *(lines[name][-1][1] for name in shown)])
    axes.axvline(1.0, **drawing.REFERENCE, zorder=1)
    beside = axes.get_yaxis_transform()
    for place, name in enumerate(shown):
        value, first = lines[name][-1][1], name == picture.worst
        colour = drawing.series_colour(picture.slot) if first else drawing.FLOOR
        axes.plot([value], [-place], marker="o", markersize=7 if first else 5, color=colour, clip_on=False)
        text = "\n".join(texts[place])
        axes.text(-0.03, -place, text, ha="right", transform=beside, **_TEXT, **(_BOLD if first else {}))
        number: dict[str, Any] = {**_TEXT, "fontsize": 8.5}
        at, line = axes.transData.transform([(value, 0), (1, 0)])[:, 0] - axes.bbox.x0
        crosses = BESIDE_PIXELS < at < line < at + BESIDE_PIXELS
        aside, side = ((-6, 0), "right") if crosses else ((6, 0), "left")
        axes.annotate(ratio(value), (value, -place), aside, textcoords="offset points", ha=side, **number)
    drawing.fix_ticks(axes.yaxis, [])
    axes.set_ylim(-len(shown) + 0.4, 0.6)
    return axes
