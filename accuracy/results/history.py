"""How did every cell come to its present baseline? history.jsonl beside a baseline: a line each time it was replaced.

A line holds date, commit, reason, and by cell the error over single device's (geometric mean over the seeds). Nothing
is judged by it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from accuracy.core import fields
from accuracy.core.errors import printable
from accuracy.core.number import plain
from accuracy.results.cell import KEYS, Cell, Key, measured
from accuracy.results.run_table import RunTable

NAME = "history.jsonl"
MOST_BYTES = 32 * 2**20
MOST_RATIO = 1e300


@dataclass(frozen=True)
class Entry:
    """A run of the past: what it was, and its cells' error over single device's by the cell's text."""

    when: str
    commit: str
    reason: str
    ratios: Mapping[str, float]


def text_of(key: Key) -> str:
    """A cell's key as one line, `dtype=bfloat16|variant=ring|...`: by name, and without what goes without saying, so
    that neither another order of the fields nor a new one changes it."""
    return "|".join(sorted(f"{name}={value}" for name, value in fields.said(dict(zip(KEYS, key, strict=True))).items()))


def entry(run: RunTable, reason: str) -> Entry:
    """A run as a line of the history."""
    ratios = {text_of(key): cell.ratio for key, cell in measured(run).items() if cell.y}
    commit = commit_of(run.about["provenance"])
    return Entry(str(run.about.get("started") or ""), commit, reason, ratios)


def commit_of(provenance: Mapping[str, Any]) -> str:
    """Of the user's functions that were measured; without any of the toolkit. 12 letters, `-dirty` behind them where
    files differed from it; nothing where no repository is known."""
    functions = provenance.get("functions")
    found = list(functions.values()) if isinstance(functions, Mapping) else []
    own = [place for each in found if isinstance(each, Mapping) for place in each.get("repositories") or ()]
    for place in own or [provenance]:
        if isinstance(place, Mapping) and place.get("git_commit"):
            return printable(str(place["git_commit"]))[:12] + ("-dirty" if place.get("dirty") else "")
    return ""


def line(each: Entry) -> str:
    """One line of history.jsonl."""
    ratios = {key: float(f"{ratio:.5g}") for key, ratio in each.ratios.items() if math.isfinite(ratio)}
    content = {"when": each.when, "commit": each.commit, "reason": each.reason, "x_single_device": ratios}
    return json.dumps(content, allow_nan=False) + "\n"


def read(folder: Path) -> list[Entry]:
    """The history beside a baseline, oldest first; a line that cannot be read is left out."""
    path = folder / NAME
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [found for each in lines if (found := _entry(each)) is not None]


def _entry(text: str) -> Entry | None:
    try:
        content = json.loads(text)
        ratios = content["x_single_device"].items()
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    good = {key: float(ratio) for key, ratio in ratios if type(ratio) in (int, float) and 0 < ratio < MOST_RATIO}
    when, commit, reason = (str(content.get(name, "")) for name in ("when", "commit", "reason"))
    return Entry(when, commit, reason, good)


def trend(key: Key, past: Sequence[Entry], now: Cell | None) -> list[float]:
    """A cell's error over single device's from run to run, the newest last; runs without the cell are skipped."""
    found = [each.ratios[text] for each in past if (text := text_of(key)) in each.ratios]
    return found + ([now.ratio] if now is not None and now.y else [])


def sparkline(values: Sequence[float]) -> Markup:
    """A line as long as a word, on a logarithmic scale that no change below 2% fills; its numbers are its title."""
    if len(values) < 2:
        return Markup("")
    logs = [math.log(value) for value in values]
    middle, reach = (max(logs) + min(logs)) / 2, max(max(logs) - min(logs), math.log(1.02))
    places = [(2 + 76 * place / (len(logs) - 1), 9 - 12 * (value - middle) / reach) for place, value in enumerate(logs)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    title = escape(" → ".join(plain(value) for value in values))
    x, y = places[-1]
    return Markup(
        f'<svg class="spark" viewBox="0 0 80 18" width="80" height="18" role="img"><title>{title}</title>'
        f'<polyline points="{points}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2"/></svg>'
    )
