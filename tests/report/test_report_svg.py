import re

from accuracy.chart import drawing
from accuracy.chart.svg import to_svg


def test_markers_keep_pointing_to_what_they_repeat() -> None:
    axes = drawing.new_axes("title", "x")
    axes.plot([1, 2], [1, 2], marker="o", color=drawing.INK)
    svg = to_svg(axes, "name", "title", "description")
    pointed, defined = (set(re.findall(rf'{name}="#?(name-\d+)"', svg)) for name in ("href", " id"))
    assert pointed == defined != set()
