"""The judgement of a captured run as one page: the sentence, layers by tensors, and every row that left rounding."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.chart.view import Table, TableCell, cells, grid, render
from accuracy.core.number import count, plain, scientific
from accuracy.live.verdict import Judgement, in_time
from accuracy.report.build import write_page
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.label import BUGS, LABELS, NOT_MEASURED, ROUNDING, badge, tone

PAGE = Path(__file__).parent / "page"
MOST = 200  # rows of a table


def write_report(found: Judgement, path: Path) -> Path:
    """Write the page, whole or not at all."""
    rows = found.rows
    judged = rows[rows["label"] != NOT_MEASURED]
    kinds = " and ".join(dict.fromkeys(rows["function"]))
    facts = f"{rows['shape'].iloc[0]} · {rows['dtype'].iloc[0]} · {count(rows['world_size'].iloc[0], 'rank')} · {kinds}"
    layers, wrong = judged["layer"].nunique(), judged.loc[judged["label"] != ROUNDING, "layer"].nunique()
    tiles = [(str(judged["name"].nunique()), f"calls of {count(layers, 'layer')} judged")]
    if layers:
        tiles = [
            (plain(judged["times"].max()), "times what rounding explains, at most"),
            (f"{wrong} of {layers}", "layers outside rounding"),
            *tiles,
        ]
    word = badge(found.label, found.label in BUGS)
    about = {"title": _title(found), "badge": word, "tone": tone(word), "tiles": tiles, "of": found.folder.name}
    named = {"Layers": _overview(judged), "What left rounding": _wrong(judged), "Not judged": _left_out(rows)}
    sections = [(name.split()[-1].lower(), name, table) for name, table in named.items() if table.rows]
    page = render(PAGE, "judge.html.jinja", sections=sections, sentence=found.sentence, facts=facts, **about)
    write_page(path, page)
    return path


def _title(found: Judgement) -> str:
    if first := found.first:
        return f"{first['tensor']} of {first['layer']} leaves rounding first"
    return "The run merely rounds" if found.healthy else "Nothing could be judged"


def _overview(judged: pd.DataFrame) -> Table:
    """The gravest label and the largest number of each layer's tensor, over steps and ranks."""
    grave = judged.assign(_grave=judged["label"].map(LABELS.index))
    places = {}
    for (_, layer, tensor), mine in grave.groupby(["order", "layer", "tensor"], sort=False):
        label = mine.sort_values("_grave").iloc[0]["label"]
        kind = "" if label == ROUNDING else "alarm"
        hint = f"worst row {plain(mine['times_row'].max())}, error {mine['error_rel'].max():.2g}"
        places[layer, tensor] = TableCell(label.replace("_", " "), plain(mine["times"].max()), kind, hint=hint)
    tensors = [name for name in ("out", "lse", "dq", "dk", "dv") if (judged["tensor"] == name).any()]
    return grid("Layers and tensors: times what rounding explains", ("layer",), tensors, places)


def _wrong(judged: pd.DataFrame) -> Table:
    of_ranks = (judged["rank"] != ALL_RANKS) | (judged["world_size"] == 1)
    wrong = in_time(judged[(judged["label"] != ROUNDING) & of_ranks]).drop_duplicates(["name", "tensor", "rank"])
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
