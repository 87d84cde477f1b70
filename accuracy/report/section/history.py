"""Section: how did a cell's error change from run to run? Of the runs given, and of the history beside a baseline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from accuracy.core.number import plain, ratio
from accuracy.results import history
from accuracy.results.cell import Cell, Key, measured, named, varying
from accuracy.results.run_table import RunTable, read_run

MOST_ROWS = 40


@dataclass(frozen=True)
class Trend:
    """A cell's error over single device's from run to run; the last is the run reported on."""

    name: str
    line: Markup
    first: str
    last: str
    change: str


@dataclass(frozen=True)
class History:
    """runs: `when commit reason` of each, oldest first; trends: of the cells that changed most."""

    runs: tuple[str, ...]
    trends: tuple[Trend, ...]
    left: int


def history_of(folder: Path, earlier: Sequence[Path]) -> History | None:
    """None where there is nothing earlier to look back on. Raises ConfigError for a folder that cannot be read."""
    past = [*history.read(folder), *(history.entry(read_run(each), each.name) for each in earlier)]
    if not past:
        return None
    return _history(read_run(folder), past)


def _history(run: RunTable, past: list[history.Entry]) -> History | None:
    """A baseline's own history ends with itself: that entry is the run."""
    cells = measured(run)
    now = history.entry(run, "this run")
    past = [each for each in past if each.when != now.when]
    if not past:
        return None
    also = varying(list(cells))
    found = [_trend(key, cell, past, also) for key, cell in cells.items() if cell.y]
    trends = sorted((each for each in found if each is not None), key=lambda pair: -pair[0])
    runs = tuple(f"{each.when[:10]} {each.commit[:12]} {each.reason}" for each in (*past, now))
    return History(runs, tuple(trend for _, trend in trends[:MOST_ROWS]), max(0, len(trends) - MOST_ROWS))


def _trend(key: Key, cell: Cell, past: list[history.Entry], also: list[str]) -> tuple[float, Trend] | None:
    values = history.trend(key, past, cell)
    if len(values) < 2:
        return None
    logs = [math.log(value) for value in values]
    change = values[-1] / values[0]
    name = named(key, also)
    return max(logs) - min(logs), Trend(
        name, history.sparkline(values), plain(values[0]), plain(values[-1]), ratio(change)
    )
