"""Every variant's tensors at its most ranks, the worst first: ratios, with a mark where the verdict is not rounding."""

import pandas as pd

from accuracy.chart.view import Table, TableCell, grid
from accuracy.core.number import TIMES, count
from accuracy.report.answer.accused import Accused, ratio_of
from accuracy.report.answer.heat import heat_cell
from accuracy.report.means import geometric_means
from accuracy.report.section.recommendation import JUDGED
from accuracy.report.series import SINGLE_DEVICE, Facet, short_names
from accuracy.verdict.label import BUGS, LABELS, ROUNDING

MOST_ROWS = 10  # that stand beside the picture on a screen of 900 px
BUG, OTHER = "✘", "▲"
MARKS = f"{BUG} bug · {OTHER} flagged, no bug proven · no mark: rounding"
_Labels = dict[tuple[str, str, int, str], tuple[str, str]]


def matrix(facet: Facet, judged: pd.DataFrame, worst: Accused) -> tuple[Table, str]:
    """The table and what it leaves out. judged: verdicts with the column `named`."""
    column, rows = ratio_of(worst.alone), facet.widest
    rows = rows if worst.alone else rows[rows["variant"] != SINGLE_DEVICE]
    labels = _labels(judged[judged["dtype"] == worst.dtype])
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


def _what(worst: Accused) -> str:
    return "Error over the rounding floor" if worst.alone else "Error over single device's"


def _labels(judged: pd.DataFrame) -> _Labels:
    """Of each cell the gravest label, with its evidence."""
    found: _Labels = {}
    for row in judged.to_dict("records"):
        key = (str(row["named"]), str(row["dtype"]), int(row["world_size"]), str(row["tensor"]))
        before = found.get(key)
        if before is None or LABELS.index(row["label"]) < LABELS.index(before[0]):
            found[key] = str(row["label"]), str(row["sentence"])
    return found


def _cell(value: float, label: str, sentence: str, here: bool) -> TableCell:
    """The ratio, always; a mark before it where the verdict is not rounding."""
    cell = heat_cell(value)
    mark = "" if label in (ROUNDING, LABELS[-1]) else f"{BUG if label in BUGS else OTHER} "
    kind = f"{cell.kind}{' flagged' if mark else ''}{' accused' if here else ''}"
    return TableCell(
        f"{mark}{cell.text.removesuffix(TIMES)}", "", kind, cell.heat, f"{label}: {sentence}" if mark else cell.hint
    )
