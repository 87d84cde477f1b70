"""compare.html, self-contained: what got worse and where, what to do, the cells around it, and all cells."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from accuracy.chart.view import Table, TableCell, grid, render
from accuracy.core.number import MISSING, TIMES, plain
from accuracy.gate import WORDS, Exit, output
from accuracy.gate.decision import Decision
from accuracy.gate.fingerprint import Entry, entries, hard, soft
from accuracy.gate.judge import FAILED, INCOMPLETE, PASSED, RESULTS, SKIPPED, Item
from accuracy.results.cell import KEYS, SINGLE_DEVICE
from accuracy.results.glossary import defined
from accuracy.verdict.headline import within

PAGE = Path(__file__).parent / "page"
MOST_ROWS = 1000  # cells of the page
MOST_SETTINGS = 10  # of the first screen, 900 px high
_CHANCE = r" \([^()]*\bp [<=][^()]*\)"  # how sure it is stands in the table of cells
BADGES = {Exit.OK: ("OK", "good"), Exit.REGRESSION: ("REGRESSION", "bad"), Exit.LOGIC: ("BUG", "bad")}
FAIL, OPEN = "✘", "▲"
MARKS = f"{FAIL} failed · {OPEN} incomplete · below it the baseline's"
_TENSOR, _VARIANT = KEYS.index("tensor"), KEYS.index("variant")


def page(decision: Decision) -> bytes:
    """The page, without any script."""
    shown = output.worst(decision, MOST_ROWS)
    skipped = [item for item in decision.items if item.state == SKIPPED]
    title, matrix = _title(decision), _matrix(decision)
    badge, tone = BADGES.get(decision.exit, (WORDS[decision.exit].upper(), "open"))
    return render(
        PAGE,
        "compare.html.jinja",
        decision=decision,
        badge=badge,
        tone=tone,
        title=title,
        tiles=list(_tiles(decision)),
        advice=output.advice(decision),
        facts=" · ".join([decision.last_line, output.labels(decision), output.compared(decision)]),
        terms=defined(title, *((matrix.caption, *matrix.head) if matrix else ())),
        matrix=matrix,
        marks=MARKS,
        rows=[(item, output.row(item, decision.by_floor)) for item in shown],
        left=len(decision.items) - len(skipped) - len(shown),
        skipped=skipped,
        entries=[
            (kind, entry) for kind, read in (("hard", hard), ("soft", soft)) for entry in _entries(decision, read)
        ],
        own_style=Markup((PAGE / "compare.css").read_text(encoding="utf-8")),
    )


def _entries(decision: Decision, read: Callable[[Mapping[str, Any]], dict[str, str]]) -> list[Entry]:
    """Without a baseline its side is empty."""
    own = read(decision.run.about)
    return entries(read(decision.baseline.about) if decision.baseline else dict.fromkeys(own, ""), own)


def _title(decision: Decision) -> str:
    """`llama3 bfloat16 W=4 dk, rank 2: error +20%`, or that nothing is worse."""
    if first := output.failed(decision, 1):
        where, _, reason = re.sub(_CHANCE, "", first[0]).partition(": ")
        return within(where, f": {reason.partition(' against the baseline')[0]}")
    compared = decision.baseline is not None and not decision.hard
    return f"No cell is worse than {'the baseline' if compared else 'the portable rules allow'}"


def _tiles(decision: Decision) -> Iterator[tuple[str, str]]:
    """The worst cell's number, how many failed, how many are as before, and what they are compared with."""
    for item in output.worst(decision, 1):
        _, _, _, ratio, before, change, *_ = output.row(item, decision.by_floor)
        if ratio:
            was = f", was {before}" if before else ""
            yield change or f"{ratio}{TIMES}", f"{output.head(decision)[3]} {ratio}{was}: {item.where}"
    judged = len(decision.items) - decision.count(SKIPPED)
    yield f"{judged - decision.count(PASSED)} of {judged}", "cells failed or incomplete"
    yield f"{output.many(decision)['identical']} of {judged}", "identical to the last bit"
    name, commit = output.origin(decision)
    yield commit or MISSING, f"the baseline's commit: {name}" if name else "no baseline"


def _matrix(decision: Decision) -> Table | None:
    """Ratios of every tensor of the settings that the worst cells are of, the worst first."""
    found: dict[tuple[str, str], TableCell] = {}
    rows: dict[tuple[object, ...], str] = {}
    judged = [item for item in decision.items if item.key and item.cell and item.cell.y]
    for item in [each for each in judged if each.key and each.key[_VARIANT] != SINGLE_DEVICE] or judged:
        assert item.key is not None
        setting = (*item.key[:_TENSOR], *item.key[_TENSOR + 1 :])
        tensor = str(item.key[_TENSOR])
        if setting not in rows and len(rows) == MOST_SETTINGS:
            continue
        name = rows.setdefault(setting, " ".join(word for word in item.name.split(" ") if word != tensor))
        found[name, tensor] = _cell(item, not found)
    tensors = [name for name in (*RESULTS, "lse", "delta") if any(tensor == name for _, tensor in found)]
    return grid("Error over single device's, the worst first", ["variant"], tensors, found) if found else None


def _cell(item: Item, first: bool) -> TableCell:
    assert item.cell is not None
    mark = {FAILED: f"{FAIL} ", INCOMPLETE: f"{OPEN} "}.get(item.state, "")
    kind = " ".join(word for word, wanted in (("flagged", mark), ("accused", first and mark)) if wanted)
    old = item.baseline if item.baseline and item.baseline.y else None
    if mark and item.rank is not None and "rank" in item.reason:  # all ranks together may look healthy
        was = f", was {plain(old.ranks[item.rank])}" if old and item.rank in old.ranks else ""
        return TableCell(f"{mark}{plain(item.cell.ranks[item.rank])}", f"rank {item.rank}{was}", kind, hint=item.reason)
    return TableCell(f"{mark}{plain(item.cell.ratio)}", plain(old.ratio) if old else "", kind, hint=item.reason)
