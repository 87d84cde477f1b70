"""A ratio in a table: its text and its colour."""

import math

from accuracy.chart.view import TableCell
from accuracy.core.number import MISSING, as_float, ratio

SATURATED_OCTAVES = 2.0  # a quarter of the single-device error, or four times it, has the full colour


def heat_cell(value: object) -> TableCell:
    """A ratio with its colour: logarithmic, none at 1."""
    number = as_float(value)
    if math.isnan(number):
        return TableCell(MISSING, kind="absent", hint="not defined or not measured")
    if math.isinf(number):
        hint = "not finite, or the single-device kernel's error is zero"
        return TableCell("∞", kind="heat infinite", heat=1.0, hint=hint)
    octaves = math.log2(number) if number > 0 else -SATURATED_OCTAVES
    heat = max(-1.0, min(1.0, octaves / SATURATED_OCTAVES))
    return TableCell(ratio(number), kind="heat hot" if heat >= 0 else "heat cold", heat=round(heat, 3))
