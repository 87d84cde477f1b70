"""The first screen of compare.html: what got worse and where, what to do, its picture, and the cells around it."""

import re
from dataclasses import dataclass, replace

from accuracy.chart.view import Panel, Table, TableCell, grid
from accuracy.core.number import plain
from accuracy.gate import text
from accuracy.gate.decision import Decision
from accuracy.gate.exits import WORDS, Exit
from accuracy.gate.item import FAILED, INCOMPLETE, Item
from accuracy.results.cell import KEYS, SINGLE_DEVICE
from accuracy.results.table import TENSORS
from accuracy.results.terms import defined

MOST_ROWS = 10  # that stand beside the picture on a screen of 900 px
_CHANCE = r" \([^()]*\bp [<=][^()]*\)"  # how sure it is stands in the table of cells
FAIL, OPEN = "✘", "▲"
MARKS = f"{FAIL} failed · {OPEN} incomplete · below it the baseline's"
_TENSOR, _VARIANT = KEYS.index("tensor"), KEYS.index("variant")
ADVICE = {
    Exit.OK: "Nothing to do.",
    Exit.REGRESSION: "Mend it; or, where the change is wanted: accuracy accept RUN_FOLDER --to BASELINE.",
    Exit.INCOMPLETE: "Repeat the run's command, which measures what is missing; what is undecided needs --second.",
    Exit.NO_BASELINE: "accuracy accept RUN_FOLDER --to FOLDER makes a run the baseline.",
}


@dataclass(frozen=True)
class FirstScreen:
    """title: one sentence; advice: what to do; facts: one line; picture: of the worst failed cell, or none; matrix: the
    worst settings by tensor, run and baseline."""

    title: str
    advice: str
    facts: str
    picture: Panel | None
    matrix: Table | None
    marks: str = MARKS

    @property
    def terms(self) -> str:
        """The words of the first screen, defined where they are first met."""
        table = self.matrix
        return defined(self.title, *((table.caption, *table.head) if table else ()))


def first_screen(decision: Decision, by_rank: list[Panel], growth: list[Panel]) -> FirstScreen:
    """by_rank: a panel a failed cell, the worst first; growth: over the world size."""
    return FirstScreen(
        title=_title(decision),
        advice=_advice(decision),
        facts=" · ".join([decision.last_line, *text.labels(decision), text.compared(decision)]),
        picture=next(iter(by_rank), None) or _drawn(decision, growth),
        matrix=_matrix(decision),
    )


def _title(decision: Decision) -> str:
    """`regression: llama3 bfloat16 W=4 dk, rank 2: error +20%`, or that nothing is worse."""
    if first := text.failed(decision, 1):
        return f"{WORDS[decision.exit].capitalize()} in {re.sub(_CHANCE, '', first[0])}"
    compared = decision.baseline is not None and not decision.hard
    return f"No cell is worse than {'the baseline' if compared else 'the portable rules allow'}."


def _advice(decision: Decision) -> str:
    if decision.exit is not Exit.LOGIC:
        return ADVICE[decision.exit]
    bug = next((item for item in decision.items if item.label == "logic" and item.key), None)
    which = f" variant={bug.key[_VARIANT]}" if bug and bug.key else ""
    return f"No baseline excuses a wrong schedule: accuracy experiment=diagnose{which} names the step."


def _drawn(decision: Decision, growth: list[Panel]) -> Panel | None:
    """Of the growth's charts the one of the worst cell's tensor."""
    tensor = next((item.key[_TENSOR] for item in decision.items if item.key), None)
    found = ((panel, chart) for panel in growth for chart in panel.charts if f"of {tensor} over" in chart.title)
    return next((replace(panel, charts=(chart,)) for panel, chart in found), None)


def others(panels: list[Panel], first: FirstScreen) -> list[Panel]:
    """The panels with the charts that are not on the first screen."""
    shown = first.picture.charts if first.picture else ()
    left = [replace(panel, charts=tuple(chart for chart in panel.charts if chart not in shown)) for panel in panels]
    return [panel for panel in left if panel.charts]


def _matrix(decision: Decision) -> Table | None:
    """Ratios of every tensor of the settings that the worst cells are of, the worst first."""
    found: dict[tuple[str, str], TableCell] = {}
    rows: dict[tuple[object, ...], str] = {}
    judged = [item for item in decision.items if item.key and item.cell and item.cell.y]
    for item in [each for each in judged if each.key and each.key[_VARIANT] != SINGLE_DEVICE] or judged:
        assert item.key is not None
        setting = (*item.key[:_TENSOR], *item.key[_TENSOR + 1 :])
        tensor = str(item.key[_TENSOR])
        if setting not in rows and len(rows) == MOST_ROWS:
            continue
        name = rows.setdefault(setting, " ".join(word for word in item.name.split(" ") if word != tensor))
        found[name, tensor] = _cell(item, not found)
    tensors = [name for name in TENSORS if any(tensor == name for _, tensor in found)]
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
