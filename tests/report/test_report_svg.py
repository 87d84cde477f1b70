import re

import pytest

from accuracy.chart import drawing
from accuracy.chart.svg import _short_path, to_svg


def points(path: str) -> list[tuple[float, float]]:
    """Where a path of `M` and `l` goes, as a browser adds it up."""
    places: list[tuple[float, float]] = []
    for letter, body in re.findall(r"([Ml])([^Mlz]*)", path):
        numbers = [float(number) for number in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", body)]
        for x, y in zip(numbers[::2], numbers[1::2], strict=True):
            base = places[-1] if letter == "l" else (0.0, 0.0)
            places.append((base[0] + x, base[1] + y))
    return places


LONG = [(0.04 * place, 100 + (-1) ** place * place / 7) for place in range(500)]
PATHS = [LONG, [(1.0, -0.5), (0.5, -0.05)], [(-10.4, 100.0), (10.06, 100.04)]]


@pytest.mark.parametrize("given", PATHS)
def test_a_shortened_path_ends_each_step_within_a_tenth(given: list[tuple[float, float]]) -> None:
    path = _short_path("M " + "\nL ".join(f"{x:.6f} {y:.6f}" for x, y in given))
    for (x, y), (wanted_x, wanted_y) in zip(points(path), given, strict=True):
        assert abs(x - wanted_x) <= 0.0501  # half a tenth, and what the sum of 500 float64 steps rounds
        assert abs(y - wanted_y) <= 0.0501


def test_closed_areas_stay_closed_and_curves_stay_curves() -> None:
    assert _short_path("M 0 0 L 1 0 L 1 1 z M 5 5 L 6 6") == "M0 0l1 0 0 1zM5 5l1 1"
    assert _short_path("M 0 1.23 C 0.44 1.55 0.86 1.39 1.17 1.1 z") == "M 0 1.2 C 0.4 1.5 0.8 1.3 1.1 1.1 z"


def test_markers_keep_pointing_to_what_they_repeat() -> None:
    axes = drawing.new_axes("title", "x")
    axes.plot([1, 2], [1, 2], marker="o", color=drawing.INK)
    svg = to_svg(axes, "name", "title", "description")
    pointed, defined = (set(re.findall(rf'{name}="#?(name-\d+)"', svg)) for name in ("href", " id"))
    assert pointed == defined != set()
