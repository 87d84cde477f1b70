"""Section: how did a cell's error change from run to run? Of the runs given, and of the history beside a baseline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accuracy.chart.view import Table, TableCell, cells
from accuracy.core.number import plain, ratio
from accuracy.results import history
from accuracy.results.cell import measured, named, varying
from accuracy.results.run_table import read_run

MOST_ROWS = 40


@dataclass(frozen=True)
class History:
    """runs: `when commit reason` of each, oldest first; trends: error over single device's from run to run, of the
    cells that changed most; the last is the run reported on."""

    runs: tuple[str, ...]
    trends: Table


def history_of(folder: Path, earlier: Sequence[Path]) -> History | None:
    """None where there is nothing earlier to look back on. Raises ConfigError for a folder that cannot be read."""
    past = [*history.read(folder), *(history.entry(read_run(each), each.name) for each in earlier)]
    if not past:
        return None
    run = read_run(folder)
    now = history.entry(run, "this run")
    past = [each for each in past if each.when != now.when]  # a baseline's own history ends with itself
    if not past:
        return None
    found = measured(run)
    also = varying(list(found))
    trends = []
    for key, cell in found.items():
        values = history.trend(key, past, cell) if cell.y else []
        if len(values) > 1:
            line, change = TableCell(history.sparkline(values)), ratio(values[-1] / values[0])
            row = cells(named(key, also), line, plain(values[0]), plain(values[-1]), change)
            trends.append((math.log(min(values)) - math.log(max(values)), row))
    trends.sort(key=lambda pair: pair[0])
    runs = tuple(f"{each.when[:10]} {each.commit[:12]} {each.reason}" for each in (*past, now))
    left = len(trends) - MOST_ROWS
    caption = f"{len(runs)} runs" + (f"; {left} further cells changed less" if left > 0 else "")
    rows = tuple(row for _, row in trends[:MOST_ROWS])
    return History(runs, Table(caption, ("cell", "history", "first", "now", "change"), rows))
