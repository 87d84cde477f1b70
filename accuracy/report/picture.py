"""The key picture: the worst tensor over the ranks, the worst line in its colour, the rest in grey, named at their
ends. It is SVG in the page's colours: it needs no JavaScript, follows the page into the dark, and prints."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from accuracy.chart.view import INK, Chart, Table, grid
from accuracy.core.number import plain, ratio

Points = list[tuple[float, float]]
Scale = Callable[[float], float]
WIDTH, HEIGHT = 353, 238  # at 390 px of screen letters of 9 have 9 px
LEFT, TOP, BOTTOM = 40, 20, 30  # room for the ticks, the title, and the axis with its label
NAMES = 126  # room for the lines' names
NUMBER = 50  # room for a dot's number
MOST_LETTERS = 21  # that fit into NAMES in a wide font
ALIKE = 1.04  # ends within 4% share a label: their letters would lie on each other
LINE = 10  # height of a label's line
MOST_LINES = 40
MOST_BARS = 14
STEPS_OF_A_DECADE = (1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Picture:
    """title: what is drawn; lines: by name, worst the one with a colour."""

    title: str
    lines: dict[str, Points]
    worst: str
    colour: int


def lines_of(values: pd.Series) -> dict[str, Points]:
    """A line for each name. values: by (name, place)."""
    lines: dict[str, Points] = {}
    for name, place, value in values.reset_index().itertuples(index=False, name=None):
        lines.setdefault(str(name), []).append((float(place), float(value)))
    return lines


def draw(picture: Picture) -> Chart | None:
    """Lines where one has two points, else a dot each; None without a positive number."""
    drawn = {name: sorted(each for each in points if 0 < each[1] < math.inf) for name, points in picture.lines.items()}
    lines = {name: points for name, points in drawn.items() if points}
    if not lines:
        return None
    order = sorted(lines, key=lambda name: (name != picture.worst, -lines[name][-1][1]))
    grows = any(len(points) > 1 for points in picture.lines.values())
    shown = {name: lines[name] for name in order[: MOST_LINES if grows else MOST_BARS]}
    height, parts = (HEIGHT, _lines(picture, shown)) if grows else _dots(picture, shown)
    ends = "; ".join(f"{name} {plain(points[-1][1])} at {points[-1][0]:g}" for name, points in shown.items())
    svg = Markup(
        '<svg class="chart" role="img" aria-labelledby="key-picture-t key-picture-d" viewBox="0 0 {} {}">'
        '<title id="key-picture-t">{}</title><desc id="key-picture-d">Logarithmic. {}.</desc>{}{}</svg>'
    )
    title = _text(0, 9, picture.title, size=10, bold=True)
    return Chart(svg.format(WIDTH, height, picture.title, ends, title, Markup().join(parts)), picture.title)


def numbers(picture: Picture) -> Table:
    """The points of the picture, the worst line first."""
    order = sorted(picture.lines, key=lambda name: name != picture.worst)[:MOST_LINES]
    places = sorted({place for name in order for place, _ in picture.lines[name]})
    found = {(name, f"{place:g}"): plain(value) for name in order for place, value in picture.lines[name]}
    return grid(f"{picture.title}, by ranks", ["variant"], [f"{place:g}" for place in places], found)


def _lines(picture: Picture, lines: dict[str, Points]) -> Iterator[Markup]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - NAMES
    y, ticks = _scale([1.0, *(value for points in lines.values() for _, value in points)], bottom, TOP)
    sizes = sorted({place for points in lines.values() for place, _ in points})
    x, _ = _scale(sizes, LEFT, right)
    for tick, text in ticks.items():
        yield _rule([(LEFT, y(tick)), (right, y(tick))], "rule")
        yield _text(LEFT - 4, y(tick), text, "end", colour="soft")
    yield from _x_axis("ranks", x, {size: f"{size:g}" for size in sizes}, LEFT, right, bottom)
    yield _rule([(LEFT, y(1.0)), (right, y(1.0))], "single-device", dashed=True)
    for name, points in reversed(lines.items()):
        worst = name == picture.worst
        colour, width, radius = (_variable(picture.colour), 2.4, 2.8) if worst else ("floor", 1.1, 1.5)
        at = [(x(place), y(value)) for place, value in points]
        yield _rule(at, colour, width)
        yield from (_dot(*place, radius, colour) for place in at)
    yield from _ends(lines, picture.worst, y)


def _ends(lines: dict[str, Points], worst: str, y: Scale) -> Iterator[Markup]:
    """At each end its ratio and its name, or how many share it; the worst in bold; never on each other."""
    groups: list[list[str]] = []
    for name in sorted(lines, key=lambda name: -lines[name][-1][1]):
        last = groups[-1] if groups else []
        if last and lines[last[0]][-1][1] < ALIKE * lines[name][-1][1] and worst not in (name, *last):
            last.append(name)
        else:
            groups.append([name])
    ends = [lines[group[0]][-1][1] for group in groups]
    names = [group[0] if len(group) == 1 else f"{len(group)} variants" for group in groups]
    texts = [wrap(f"{ratio(end)} {name}") for end, name in zip(ends, names, strict=True)]
    places = _without_overlap([y(end) for end in ends], list(map(len, texts)), HEIGHT - BOTTOM)
    for group, text, place in zip(groups, texts, places, strict=True):
        for number, part in enumerate(text):
            yield _text(WIDTH - NAMES + 5, place + LINE * number, part, bold=worst in group)


def wrap(text: str) -> list[str]:
    """Three lines of MOST_LETTERS at most, broken where a word ends; what does not fit ends in an ellipsis."""
    found = [""]
    for piece in re.findall(rf"[^\s,=_+]{{1,{MOST_LETTERS}}}[\s,=_+]*", text.replace(" · ", " ")):
        if len((found[-1] + piece).rstrip()) > MOST_LETTERS:
            found.append("")
        found[-1] += piece
    return [line.rstrip() for line in found] if len(found) <= 3 else [*found[:2], f"{found[2][:-1]}…"]


def _without_overlap(wanted: list[float], lines: list[int], bottom: float) -> list[float]:
    """From the top down, each below its predecessor's lines; pushed back up from the bottom."""
    places: list[float] = []
    for place, above in zip(wanted, [0, *lines], strict=False):
        places.append(max(place, places[-1] + LINE * above + 2 if places else TOP))
    for index in reversed(range(len(places))):
        places[index] = min(places[index], bottom - LINE * (lines[index] - 1))
        bottom = places[index] - LINE - 2
    return places


def _dots(picture: Picture, lines: dict[str, Points]) -> tuple[int, list[Markup]]:
    """No growth to draw: each variant a dot, the furthest on top. The height, and what is drawn."""
    texts = {name: wrap(name) for name in lines}
    row = 9 + LINE * max(map(len, texts.values()))
    bottom, right = TOP + 4 + row * len(lines), WIDTH - NUMBER
    x, ticks = _scale([1.0, *(points[-1][1] for points in lines.values())], NAMES, right)
    parts = [*_x_axis("times (logarithmic)", x, ticks, NAMES, right, bottom)]
    parts.append(_rule([(x(1.0), TOP), (x(1.0), bottom)], "single-device", dashed=True))
    for index, (name, points) in enumerate(lines.items()):
        worst, value, middle = name == picture.worst, points[-1][1], TOP + 4 + row * (index + 0.5)
        parts.append(_dot(x(value), middle, 3.5 if worst else 2.5, _variable(picture.colour) if worst else "floor"))
        first = middle - LINE * (len(texts[name]) - 1) / 2
        parts += [_text(NAMES - 5, first + LINE * number, part, "end", bold=worst)
                  for number, part in enumerate(texts[name])]  # fmt: skip
        crosses = x(value) < x(1.0) < x(value) + NUMBER < x(1.0) + x(value) - NAMES  # there is room on the other side
        parts.append(_text(x(value) + (-6 if crosses else 6), middle, ratio(value), "end" if crosses else "start"))
    return bottom + BOTTOM, parts


def _scale(values: list[float], begin: float, end: float) -> tuple[Scale, dict[float, str]]:
    """Where a value is on a logarithmic axis from pixel `begin` to `end`, and its three to six ticks."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.08, 0.07 * (high - low))
    low, high = low - margin, high + margin
    decades, inside = range(math.floor(low), math.ceil(high) + 1), list[float]()
    for steps in STEPS_OF_A_DECADE:
        inside = inside if len(inside) >= 3 else [step * 10.0**decade for decade in decades for step in steps
                                                  if low <= math.log10(step * 10.0**decade) <= high]  # fmt: skip
    ticks = {place: f"{place:.3g}" for place in inside[:: math.ceil(len(inside) / 6)]}
    return lambda value: begin + (math.log10(value) - low) / (high - low) * (end - begin), ticks


def _x_axis(label: str, x: Scale, ticks: dict[float, str], left: float, right: float, y: float) -> Iterator[Markup]:
    """The axis with those ticks that have room."""
    yield _rule([(left, y), (right, y)], "soft")
    last = -math.inf
    for tick, text in ticks.items():
        if x(tick) - last > 14:
            last = x(tick)
            yield _rule([(last, y), (last, y + 3)], "soft")
            yield _text(last, y + 9, text, "middle", colour="soft")
    yield _text((left + right) / 2, y + 22, label, "middle", colour="soft")


def _variable(colour: int) -> str:
    return "ink" if colour == INK else f"series-{colour}"


def _rule(points: Points, colour: str, width: float = 0.6, dashed: bool = False) -> Markup:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    look = "1.1;stroke-dasharray:6 3" if dashed else width
    return Markup('<path d="{}" style="fill:none;stroke:var(--{});stroke-width:{}"/>').format(path, colour, look)


def _dot(x: float, y: float, radius: float, colour: str) -> Markup:
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}" style="fill:var(--{})"/>').format(x, y, radius, colour)


def _text(
    x: float, y: float, text: str, anchor: str = "start", size: int = 9, bold: bool = False, colour: str = "ink"
) -> Markup:
    style = f"font-size:{size}px;text-anchor:{anchor};fill:var(--{colour}){';font-weight:600' if bold else ''}"
    return Markup('<text x="{:.1f}" y="{:.1f}" style="{}">{}</text>').format(x, y + 0.35 * size, style, text)
