"""The decision for a terminal: what was compared, the worst cells, what a reader must know, the count last."""

import math

from accuracy.core.number import count, plain, scientific
from accuracy.core.printable import printable
from accuracy.gate.decision import Decision
from accuracy.gate.exits import WORDS
from accuracy.gate.item import INCOMPLETE, SKIPPED, STATE_OF, Item, percent

HEAD = ("cell", "label", "x single device", "baseline", "change", "error", "reason")
Table = list[tuple[str, ...]]


def terminal(decision: Decision, most: int = 10) -> str:
    """The whole text; the last line is `N passed, N failed, N skipped`."""
    lines = [headline(decision), compared(decision), ""]
    lines += aligned([HEAD, *(row(item) for item in worst(decision, most))])
    left = len(decision.items) - decision.count(SKIPPED) - most
    lines += [f"and {count(left, 'cell')} more", ""] if left > 0 else [""]
    lines += [*labels(decision), *decision.notes, decision.last_line]
    return "\n".join(lines)


def headline(decision: Decision) -> str:
    """One sentence: the outcome and its gravest reason."""
    word = WORDS[decision.exit]
    blocking = [item for item in decision.items if item.state in ("failed", INCOMPLETE)]
    if not blocking:
        return f"accuracy-check {decision.run.experiment}: {word}"
    return f"accuracy-check {decision.run.experiment}: {word}. {blocking[0].name}: {blocking[0].reason}"


def compared(decision: Decision) -> str:
    """With what the run was compared."""
    if decision.baseline is None:
        return "against: nothing (portable rules)"
    commit = str(decision.baseline.about["provenance"].get("git_commit") or "unknown")[:12]
    fitting = "not comparable" if decision.hard else "same fingerprint"
    return f"against: {decision.baseline.folder} (commit {printable(commit)}, {fitting})"


def worst(decision: Decision, most: int) -> list[Item]:
    """The worst items that are not skipped."""
    return [item for item in decision.items if item.state != SKIPPED][:most]


def row(item: Item) -> tuple[str, ...]:
    """An item as texts, under HEAD."""
    numbers = item.cell is not None and bool(item.cell.y)
    return (
        item.name,
        item.label,
        plain(item.cell.ratio) if item.cell is not None and numbers else "",
        plain(item.baseline.ratio) if item.baseline is not None and item.baseline.y else "",
        percent(item.effect) if math.isfinite(item.effect) else "",
        scientific(item.cell.error) if item.cell is not None and numbers else "",
        item.reason,
    )


def labels(decision: Decision) -> list[str]:
    """`402 identical, 6 changed`: how many items have which label."""
    found = [f"{len(items)} {label}" for label in STATE_OF if (items := decision.labelled(label))]
    return [", ".join(found)] if found else ["nothing was measured"]


def aligned(rows: Table) -> list[str]:
    """Columns of equal width; the last is as long as it is."""
    widths = [max(len(each[place]) for each in rows) for place in range(len(rows[0]) - 1)]
    return ["  ".join([*(text.ljust(width) for text, width in zip(each, widths, strict=False)), each[-1]]).rstrip()
            for each in rows]  # fmt: skip
