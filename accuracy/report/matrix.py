"""Every variant's tensors at its most ranks, the worst first: ratios, with a mark where the verdict is not rounding."""

import math
from collections.abc import Mapping

import pandas as pd

from accuracy.chart.view import Table, TableCell, grid
from accuracy.core.number import MISSING, TIMES, as_float, count, ratio
from accuracy.report.series import SINGLE_DEVICE, Facet, geometric_means, short_names
from accuracy.report.worst import JUDGED, ratio_of
from accuracy.verdict.facts import Worst
from accuracy.verdict.label import BUGS, LABELS, ROUNDING

SATURATED_OCTAVES = 2.0  # a quarter of the single-device error, or four times it, has the full colour
MOST_ROWS = 10  # that stand beside the picture on a screen of 900 px
BUG, OTHER = "✘", "▲"
MARKS = f"{BUG} bug · {OTHER} flagged, no bug proven · no mark: rounding"
Verdict = tuple[str, str]
"""A label and its evidence."""
Cell = tuple[str, str]
"""A row's name and a tensor."""


def matrix(facet: Facet, judged: pd.DataFrame, worst: Worst) -> tuple[Table, str]:
    """The table of a facet and what it leaves out. judged: verdicts with the column `named`."""
    column, rows = ratio_of(worst.alone), facet.widest
    rows = rows if worst.alone else rows[rows["variant"] != SINGLE_DEVICE]
    labels, largest = gravest(judged[judged["dtype"] == worst.dtype]), facet.largest_world
    ratios = geometric_means(rows, ["series", "named", "world_size", "tensor"], [column]).reset_index()
    gated = ratios[ratios["tensor"].isin(JUDGED)]
    order = (gated if len(gated) else ratios).groupby("series")[column].max().sort_values(ascending=False)
    mine = {str(series): rows for series, rows in ratios.groupby("series")}
    ranked = [worst.series, *(name for name in [*order.index, *mine] if name != worst.series)]
    short = short_names(mine)
    found: dict[str, dict[str, float]] = {}
    verdicts: dict[Cell, Verdict] = {}
    here = ("", "")
    for series in dict.fromkeys(name for name in ranked if name in mine):
        for row in mine[series].to_dict("records"):
            size, tensor = int(row["world_size"]), str(row["tensor"])
            name = short[series] + ("" if size == largest else f" ({count(size, 'rank')})")
            found.setdefault(name, {})[tensor] = row[column]
            verdicts[name, tensor] = labels.get((str(row["named"]), worst.dtype, size, tensor), (ROUNDING, ""))
            here = (name, tensor) if (series, tensor) == (worst.series, worst.tensor) else here
    what = "the rounding floor" if worst.alone else "single device's"
    caption = f"Error over {what}, {facet.label}, {count(largest, 'rank')}{' together' if largest > 1 else ''}"
    tensors = sorted(facet.tensors, key=lambda name: name not in JUDGED)
    return heat_table(caption, tensors, found, here, verdicts)


def heat_table(
    caption: str, tensors: list[str], rows: Mapping[str, Mapping[str, float]], here: Cell,
    verdicts: Mapping[Cell, Verdict],
) -> tuple[Table, str]:  # fmt: skip
    """The first rows, in colours, and how many are left out. rows: name -> tensor -> ratio, worst first; here: the cell
    that the page is about; verdicts: of cells, where there are any."""
    found = {
        (name, tensor): _cell(value, *verdicts.get((name, tensor), (ROUNDING, "")), (name, tensor) == here)
        for name in list(rows)[:MOST_ROWS]
        for tensor, value in rows[name].items()
    }
    left = len(rows) - MOST_ROWS
    return grid(caption, ["variant"], tensors, found), f"and {left} more, none worse" if left > 0 else ""


def gravest(judged: pd.DataFrame) -> dict[tuple[str, str, int, str], Verdict]:
    """The gravest label of each variant, dtype, number of ranks and tensor, with its evidence."""
    found: dict[tuple[str, str, int, str], Verdict] = {}
    for row in judged.to_dict("records"):
        key = (str(row["named"]), str(row["dtype"]), int(row["world_size"]), str(row["tensor"]))
        both = found.get(key, (LABELS[-1], "")), (str(row["label"]), str(row["sentence"]))
        found[key] = min(both, key=lambda one: LABELS.index(one[0]))
    return found


def _cell(value: float, label: str, sentence: str, here: bool) -> TableCell:
    """The ratio, always; a mark before it where the verdict is not rounding."""
    cell = heat_cell(value)
    mark = "" if label in (ROUNDING, LABELS[-1]) else f"{BUG if label in BUGS else OTHER} "
    kind = f"{cell.kind}{' flagged' if mark else ''}{' accused' if here else ''}"
    hint = f"{label}: {sentence}" if mark else cell.hint
    return TableCell(f"{mark}{cell.text.removesuffix(TIMES)}", "", kind, cell.heat, hint)


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
