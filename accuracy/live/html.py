"""The judgement of a captured run as one page: the sentence, layers by tensors, and every row that left rounding."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.chart.render import render
from accuracy.chart.view import Table, TableCell, cells, grid
from accuracy.core.number import count, plain, scientific
from accuracy.live.judge import Judgement
from accuracy.live.verdict import in_time
from accuracy.report.build import write_page
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.label import LABELS, NOT_MEASURED, ROUNDING

PAGE = Path(__file__).parent / "page"
MOST = 200  # rows of a table


def write_report(found: Judgement, path: Path) -> Path:
    """Write the page, whole or not at all."""
    rows, judged = found.rows, found.judged
    told = rows[rows["label"] != NOT_MEASURED]
    kinds = " and ".join(dict.fromkeys(rows["function"]))
    calls = f"{count(told['name'].nunique(), 'call')} of {count(told['layer'].nunique(), 'layer')} judged"
    facts = f"{calls}; {rows['shape'].iloc[0]}, {rows['dtype'].iloc[0]}, {rows['world_size'].iloc[0]} ranks; {kinds}"
    tables = (_overview(told), _wrong(told), _left_out(rows))
    title = "Healthy" if judged.healthy else judged.label.replace("_", " ").capitalize()
    page = render(
        PAGE, "judge.html.jinja", judged=judged, title=title, of=str(found.folder), facts=facts, tables=tables,
    )  # fmt: skip
    write_page(path, page)
    return path


def _overview(told: pd.DataFrame) -> Table:
    """The gravest label and the largest number of each layer's tensor, over steps and ranks."""
    grave = told.assign(_grave=told["label"].map(LABELS.index))
    places = {}
    for (_, layer, tensor), mine in grave.groupby(["order", "layer", "tensor"], sort=False):
        label = mine.sort_values("_grave").iloc[0]["label"]
        kind = "" if label == ROUNDING else "alarm"
        hint = f"worst row {plain(mine['times_row'].max())}, error {mine['error_rel'].max():.2g}"
        places[layer, tensor] = TableCell(label.replace("_", " "), plain(mine["times"].max()), kind, hint=hint)
    tensors = [name for name in ("out", "lse", "dq", "dk", "dv") if (told["tensor"] == name).any()]
    return grid("Layers and tensors: times what rounding explains", ("layer",), tensors, places)


def _wrong(told: pd.DataFrame) -> Table:
    wrong = in_time(told[(told["label"] != ROUNDING) & ((told["rank"] != ALL_RANKS) | (told["world_size"] == 1))])
    wrong = wrong.drop_duplicates(["name", "tensor", "rank"])
    rows = [_row(one) for one in wrong.head(MOST).to_dict("records")]
    more = f", the first {MOST} of {len(wrong)}" if len(wrong) > MOST else ""
    head = ("layer", "step", "tensor", "rank", "label", "evidence", "times", "worst row", "error", "rounding floor",
            "batch, token, head")  # fmt: skip
    return Table(f"What left rounding, in the order in which it was computed{more}", head, tuple(rows))


def _row(one: Mapping[Any, Any]) -> tuple[TableCell, ...]:
    rank = "all" if one["rank"] == ALL_RANKS else one["rank"]
    label = one["label"].replace("_", " ")
    numbers = plain(one["times"]), plain(one["times_row"]), scientific(one["error_rel"]), scientific(one["floor_rel"])
    place = ", ".join(str(int(one[f"worst_{name}"])) for name in ("batch", "token", "head"))
    return cells(one["layer"], one["step"], one["tensor"], rank, label, one["sentence"], *numbers, place)


def _left_out(rows: pd.DataFrame) -> Table:
    left = rows[rows["label"] == NOT_MEASURED].head(MOST)
    return Table("Not judged", ("call", "why"), tuple(map(cells, left["name"], left["sentence"])))
