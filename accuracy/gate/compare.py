"""The decision as a page: the run beside its baseline, worst cells first, growth curves overlaid. No script at all."""

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from accuracy.chart.render import render
from accuracy.chart.view import Chip
from accuracy.core.number import count
from accuracy.gate import text
from accuracy.gate.decision import Decision
from accuracy.gate.exits import WORDS, Exit
from accuracy.gate.fingerprint import hard, soft
from accuracy.gate.item import FAILED, INCOMPLETE, PASSED, SKIPPED, Item
from accuracy.gate.overlay import panels
from accuracy.results import history
from accuracy.results.history import Entry

PAGE = Path(__file__).parent / "page"
MOST_ROWS = 1000


@dataclass(frozen=True)
class Entries:
    """One entry of the fingerprint on both sides."""

    name: str
    baseline: str
    run: str
    kind: str

    @property
    def differs(self) -> bool:
        """Whether the two are not the same."""
        return self.baseline != self.run


def page(decision: Decision) -> bytes:
    """compare.html, self-contained."""
    past = history.read(decision.baseline.folder) if decision.baseline is not None else []
    blocking = [item for item in decision.items if item.state in (FAILED, INCOMPLETE)]
    fine = [item for item in decision.items if item.state == PASSED]
    shown = [*blocking, *fine][:MOST_ROWS]
    return render(
        PAGE,
        "compare.html.jinja",
        decision=decision,
        outcome=WORDS[decision.exit],
        chips=_chips(decision),
        compared=text.compared(decision),
        labels=text.labels(decision),
        rows=[(item, text.row(item), _spark(item, past)) for item in shown],
        left=len(blocking) + len(fine) - len(shown),
        skipped=[item for item in decision.items if item.state == SKIPPED],
        entries=_entries(decision),
        growth=panels(decision),
        past=past,
        own_style=Markup((PAGE / "compare.css").read_text(encoding="utf-8")),
    )


def _chips(decision: Decision) -> list[Chip]:
    failed, incomplete = decision.count(FAILED), decision.count(INCOMPLETE)
    chips = [Chip(WORDS[decision.exit], "good" if decision.exit is Exit.OK else "bad")]
    chips.append(Chip(f"{count(decision.count(PASSED), 'cell')} passed", "good" if decision.count(PASSED) else "open"))
    if failed:
        chips.append(Chip(f"{failed:,} failed", "bad"))
    if incomplete:
        chips.append(Chip(f"{incomplete:,} incomplete", "bad"))
    if decision.count(SKIPPED):
        chips.append(Chip(f"{decision.count(SKIPPED):,} skipped", "open"))
    if decision.baseline is None or decision.hard:
        chips.append(Chip("no comparable baseline", "open"))
    return chips


def _entries(decision: Decision) -> list[Entries]:
    """Hard entries first; without a baseline its side is empty."""
    found = []
    for kind, read in (("hard", hard), ("soft", soft)):
        own = read(decision.run.about)
        old = read(decision.baseline.about) if decision.baseline else dict.fromkeys(own, "")
        for name in dict.fromkeys((*own, *old)):
            found.append(Entries(name, old.get(name, "not recorded"), own.get(name, "not recorded"), kind))
    return found


def _spark(item: Item, past: list[Entry]) -> Markup:
    return history.sparkline(history.trend(item.key, past, item.cell)) if item.key else Markup("")
