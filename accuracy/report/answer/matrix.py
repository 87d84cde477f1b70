"""Every variant's tensors at its most ranks, the worst first: ratios, with a mark where the verdict is not rounding."""

import math

import pandas as pd

from accuracy.chart.view import Table, TableCell, grid
from accuracy.core.number import MISSING, TIMES, as_float, count, ratio
from accuracy.report.answer.worst import ratio_of
from accuracy.report.section.recommendation import JUDGED
from accuracy.report.series import SINGLE_DEVICE, Facet, geometric_means, short_names
from accuracy.verdict.facts import Worst
from accuracy.verdict.label import BUGS, LABELS, ROUNDING

SATURATED_OCTAVES = 2.0  # a quarter of the single-device error, or four times it, has the full colour
MOST_ROWS = 10  # that stand beside the picture on a screen of 900 px
BUG, OTHER = "✘", "▲"
MARKS = f"{BUG} bug · {OTHER} flagged, no bug proven · no mark: rounding"
Labels = dict[tuple[str, str, int, str], tuple[str, str]]


def matrix(facet: Facet, judged: pd.DataFrame, worst: Worst) -> tuple[Table, str]:
    """The table and what it leaves out. judged: verdicts with the column `named`."""
    column, rows = ratio_of(worst.alone), facet.widest
    rows = rows if worst.alone else rows[rows["variant"] != SINGLE_DEVICE]
    labels = gravest(judged[judged["dtype"] == worst.dtype])
    ratios = geometric_means(rows, ["series", "named", "world_size", "tensor"], [column]).reset_index()
    gated = ratios[ratios["tensor"].isin(JUDGED)]
    order = (gated if len(gated) else ratios).groupby("series")[column].max().sort_values(ascending=False)
    ranked = [worst.series, *(name for name in order.index if name != worst.series)]
    largest, found = facet.largest_world, {}
    mine = {str(series): rows for series, rows in ratios.groupby("series")}
    short = short_names(mine)
    for series in [name for name in ranked if name in mine][:MOST_ROWS]:
        for row in mine[series].to_dict("records"):
            size, tensor = int(row["world_size"]), str(row["tensor"])
            name = short[series] + ("" if size == largest else f" ({count(size, 'rank')})")
            said = labels.get((str(row["named"]), worst.dtype, size, tensor), (ROUNDING, ""))
            found[name, tensor] = _cell(row[column], *said, (series, tensor) == (worst.series, worst.tensor))
    left = len(mine) - MOST_ROWS
    caption = f"{_what(worst)}, {facet.label}, {count(largest, 'rank')}{' together' if largest > 1 else ''}"
    return grid(
        caption, ["variant"], _gated_first(facet.tensors), found
    ), f"and {left} more, none worse" if left > 0 else ""


def _gated_first(tensors: list[str]) -> list[str]:
    return sorted(tensors, key=lambda name: name not in JUDGED)


def _what(worst: Worst) -> str:
    return "Error over the rounding floor" if worst.alone else "Error over single device's"


def gravest(judged: pd.DataFrame) -> Labels:
    """The gravest label of each variant, dtype, number of ranks and tensor, with its evidence."""
    found: Labels = {}
    for row in judged.to_dict("records"):
        key = (str(row["named"]), str(row["dtype"]), int(row["world_size"]), str(row["tensor"]))
        found[key] = min(found.get(key, (LABELS[-1], "")), (row["label"], row["sentence"]), key=_grave)
    return found


def _grave(found: tuple[str, str]) -> int:
    return LABELS.index(found[0])


def _cell(value: float, label: str, sentence: str, here: bool) -> TableCell:
    """The ratio, always; a mark before it where the verdict is not rounding."""
    cell = heat_cell(value)
    mark = "" if label in (ROUNDING, LABELS[-1]) else f"{BUG if label in BUGS else OTHER} "
    kind = f"{cell.kind}{' flagged' if mark else ''}{' accused' if here else ''}"
    return TableCell(
        f"{mark}{cell.text.removesuffix(TIMES)}", "", kind, cell.heat, f"{label}: {sentence}" if mark else cell.hint
    )


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
