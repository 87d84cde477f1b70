"""The key picture: the worst tensor over the ranks, the worst line in its colour, the rest in grey, named at their
ends. Drawn beforehand: it needs no JavaScript and prints."""

import re
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from accuracy.chart import drawing
from accuracy.chart.svg import to_svg
from accuracy.chart.view import Chart, Table, grid
from accuracy.core.number import plain, ratio

Points = list[tuple[float, float]]
WIDTH, HEIGHT, MARGIN = 4.9, 3.3, 1.75  # inch; at 390 px of screen its letters have 9 px
BESIDE = 0.7  # room for the last dot's number
MOST_LETTERS = 21  # that the margin holds in a wide font
ALIKE = 1.04  # ends within 4% share a label: their letters would lie on each other
LETTER = 0.052  # height of a label's line, of the axis
MOST_LINES = 40
MOST_BARS = 14
MOST_MARKED = 16  # points of a line that have room for a marker each, and for a logarithmic axis
MOST_TICKS = 8


@dataclass(frozen=True)
class Picture:
    """title: what is drawn; along: the x axis; lines: by name, worst the one with a colour (of its slot)."""

    title: str
    along: str
    lines: dict[str, Points]
    worst: str
    slot: int

    @property
    def grows(self) -> bool:
        """Whether any line has two points."""
        return any(len(points) > 1 for points in self.lines.values())


def draw(picture: Picture) -> Chart | None:
    """Lines where there are some, else a dot each; None without a positive number."""
    kept = {name: [point for point in points if point[1] > 0] for name, points in picture.lines.items()}
    lines = {name: sorted(points) for name, points in kept.items() if points}
    if not lines:
        return None
    order = sorted(lines, key=lambda name: (name != picture.worst, -lines[name][-1][1]))
    axes = _lines(picture, lines, order) if picture.grows else _dots(picture, lines, order)
    said = "; ".join(f"{name} {plain(lines[name][-1][1])} at {lines[name][-1][0]:g}" for name in order[:MOST_LINES])
    return Chart(to_svg(axes, "key-picture", picture.title, f"Logarithmic. {said}."), picture.title)


def numbers(picture: Picture) -> Table:
    """The points of the picture, the worst line first."""
    order = sorted(picture.lines, key=lambda name: name != picture.worst)[:MOST_LINES]
    places = sorted({place for name in order for place, _ in picture.lines[name]})
    found = {(name, f"{place:g}"): plain(value) for name in order for place, value in picture.lines[name]}
    return grid(f"{picture.title}, by {picture.along}", ["variant"], [f"{place:g}" for place in places], found)


def _lines(picture: Picture, lines: dict[str, Points], order: list[str]) -> Axes:
    axes = drawing.new_axes(picture.title, picture.along, WIDTH, HEIGHT, right=MARGIN)
    shown = order[:MOST_LINES]
    drawing.ratio_y(axes, [1.0, *(value for name in shown for _, value in lines[name])])
    places = sorted({place for name in shown for place, _ in lines[name]})
    if len(places) <= MOST_MARKED:
        drawing.world_x(axes, map(int, places))
    else:
        drawing.fix_ticks(axes.xaxis, places[:: -(-len(places) // MOST_TICKS)])
    axes.axhline(1.0, **drawing.REFERENCES["single-device"], zorder=1)
    for name in reversed(shown):
        first = name == picture.worst
        look: dict[str, Any] = (
            {"linewidth": 2.4, "markersize": 5.5} if first else {**_GREY, "linewidth": 1.1, "markersize": 3}
        )
        x, y = ([point[way] for point in lines[name]] for way in (0, 1))
        drawing.line(axes, x, y, picture.slot, **look)
    _label_ends(axes, lines, shown, picture.worst)
    return axes


_GREY: dict[str, Any] = {"color": drawing.FLOOR, "marker": "o", "markersize": 3, "linewidth": 1.1, "gid": None}


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
    texts = [_label(group, lines) for group in groups]
    wanted = [axes.transData.transform((1, lines[group[0]][-1][1]))[1] for group in groups]
    span = axes.bbox.height
    places = _apart([(place - axes.bbox.y0) / span for place in wanted], [1 + text.count("\n") for text in texts])
    for group, text, place in zip(groups, texts, places, strict=True):
        bold: dict[str, Any] = {"fontweight": "bold"} if worst in group else {}
        for line, part in enumerate(text.split("\n")):
            height = place - LETTER * 1.15 * line
            axes.text(1.02, height, part, transform=axes.transAxes, va="center", fontsize=9, color=drawing.INK, **bold)


def _label(group: list[str], lines: dict[str, Points]) -> str:
    value = ratio(lines[group[0]][-1][1])
    name = group[0] if len(group) == 1 else f"{len(group)} variants"
    return "\n".join(wrap(f"{value} {drawable(name)}"))


def drawable(name: str) -> str:
    """A table's text is anyone's: letters, digits and a few signs are drawn, the rest is not."""
    return re.sub(r"[^\w .,=+-]", "?", name.replace(" · ", " "), flags=re.ASCII)


def wrap(text: str, most: int = MOST_LETTERS, lines: int = 3) -> list[str]:
    """Lines of so many letters, broken where a word ends; what does not fit three lines ends in an ellipsis."""
    pieces = re.findall(rf"[^\s,=_]{{1,{most}}}[\s,=_]*", text)
    found = [""]
    for piece in pieces:
        if len((found[-1] + piece).rstrip()) > most:
            found.append("")
        found[-1] += piece
    return (
        [line.rstrip() for line in found] if len(found) <= lines else [*found[: lines - 1], found[lines - 1][:-1] + "…"]
    )


def _apart(wanted: list[float], heights: list[int]) -> list[float]:
    """From the top down, each at least its predecessor's lines below it; pushed back up from the bottom."""
    places: list[float] = []
    for place, _ in zip(wanted, heights, strict=True):
        above = places[-1] - LETTER * 1.3 * heights[len(places) - 1] if places else 1.0
        places.append(min(place, above))
    low = 0.0
    for index in reversed(range(len(places))):
        places[index] = max(places[index], low + LETTER * 1.15 * (heights[index] - 1))
        low = places[index] + LETTER * 1.3
    return places


def _dots(picture: Picture, lines: dict[str, Points], order: list[str]) -> Axes:
    """No growth to draw: each variant a dot, the furthest on top."""
    shown = order[:MOST_BARS]
    axes = drawing.new_axes(
        picture.title, "times (logarithmic)", WIDTH, max(1.5, 0.62 + 0.26 * len(shown)), left=MARGIN, right=BESIDE
    )
    drawing.ratio_x(axes, [1.0, *(lines[name][-1][1] for name in shown)])
    axes.axvline(1.0, **drawing.REFERENCES["single-device"], zorder=1)
    for place, name in enumerate(shown):
        value, first = lines[name][-1][1], name == picture.worst
        colour = drawing.series_colour(picture.slot) if first else drawing.FLOOR
        axes.plot([value], [-place], marker="o", markersize=7 if first else 5, color=colour, clip_on=False)
        bold: dict[str, Any] = {"fontweight": "bold"} if first else {}
        text = wrap(drawable(name), MOST_LETTERS, 1)[0]
        left: dict[str, Any] = {
            "transform": axes.get_yaxis_transform(),
            "va": "center",
            "fontsize": 9,
            "color": drawing.INK,
        }
        axes.text(-0.03, -place, text, ha="right", **left, **bold)
        axes.annotate(ratio(value), (value, -place), (6, 0), textcoords="offset points", va="center", fontsize=8.5,
                      color=drawing.INK)  # fmt: skip
    drawing.fix_ticks(axes.yaxis, [])
    axes.set_ylim(-len(shown) + 0.4, 0.6)
    return axes
