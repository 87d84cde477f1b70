"""Which implementation of distributed attention is how accurate? A page of the site, from many_ranks' published table.

One problem for all, the same number of ranks for all; packages' own code on real ranks apart from our schedules, which
are simulated. The page shows one number of ranks, dtype and kind of heads at a time, and has all of them.
"""

from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from accuracy.core.number import plain
from accuracy.report.folder import NoReport
from experiments.many_ranks.tables import BOARD, TABLE, board
from experiments.published import TENSORS

PAGE = Path(__file__).parent / "page"
SHOWN = {"world_size": BOARD, "dtype": "bfloat16", "heads_kv": 8}
"""The filters' values when the page opens."""
COLUMNS = {
    "worst": "largest, worst rank", **{name: f"{name}, worst rank" for name in TENSORS},
    "all_ranks": "largest, all ranks", **{f"all_{name}": f"{name}, all ranks" for name in TENSORS},
}  # fmt: skip


def write_leaderboard(reports: Path, path: Path) -> pd.DataFrame:
    """Write the page, whose link is relative to `reports`, and return the board. Raises NoReport where
    many_ranks is not published."""
    if not (reports / TABLE).is_dir():
        raise NoReport(f"{reports}: holds no {TABLE}")
    found = board(reports / TABLE)
    path.write_text(to_html(found, f"{TABLE}/report.html"), encoding="utf-8")
    return found


def to_html(found: pd.DataFrame, report: str) -> str:
    """The board as a page of its own."""
    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined)
    environment.filters["plain"] = plain
    parts = {
        "Packages, their own code, real ranks": found[found["world"] == "processes"],
        "Our schedules of the same kinds, simulated": found[found["world"] != "processes"],
    }
    choices = {key: sorted({*found[key]}) for key in SHOWN}
    template = environment.get_template("leaderboard.html.jinja")
    tables = {title: rows.to_dict("records") for title, rows in parts.items()}
    return template.render(tables=tables, columns=COLUMNS, choices=choices, shown=SHOWN, report=report)
