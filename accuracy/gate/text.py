"""The decision as text: for a terminal, and as Markdown for GitHub's step summary and comments, within their limits."""

import html
import math
import re
from collections import Counter
from itertools import accumulate

from accuracy.core.errors import printable
from accuracy.core.number import count, plain, scientific
from accuracy.gate.decision import Decision
from accuracy.gate.exits import WORDS, Exit
from accuracy.gate.item import FAILED, INCOMPLETE, SKIPPED, STATE_OF, Item, percent

SUMMARY_BYTES = 2**20  # of a step; what is above is not shown at all
COMMENT_BYTES = 65_536  # in characters, GitHub says; bytes are never fewer
COMMENT_ROWS = 10
NAMED = 3  # failed cells above all else
MARK = "<!-- accuracy-check -->"  # by which a comment is found again
HEAD = ("cell", "rank", "label", "x single device", "baseline", "change", "error", "reason")


def terminal(decision: Decision, most: int = 10) -> str:
    """The whole text; the last line is `N passed, N failed, N skipped`."""
    lines = [headline(decision), compared(decision), ""]
    lines += aligned([HEAD, *(row(item) for item in worst(decision, most))])
    left = len(decision.items) - decision.count(SKIPPED) - most
    lines += [f"and {count(left, 'cell')} more", ""] if left > 0 else [""]
    lines += [*labels(decision), *decision.notes, decision.last_line]
    return "\n".join(lines)


def headline(decision: Decision) -> str:
    """One sentence: the outcome, its gravest reason, and whether a worse kernel could hide in single device's error."""
    outcome = f"accuracy-check {decision.run.experiment}: {WORDS[decision.exit]}"
    if decision.alone:
        every = decision.alone == sum(item.cell is not None for item in decision.items)
        lacking = "in the matrix" if every else f"for {count(decision.alone, 'cell')}"
        outcome += f" (no single device {lacking}: judged by the rounding floor)"
    first = failed(decision, 1)
    return ". ".join([outcome, *first])


def failed(decision: Decision, most: int) -> list[str]:
    """`ring bfloat16 W=4 dq, rank 2: +30% ...`, the worst first."""
    bad = [item for item in decision.items if item.state in (FAILED, INCOMPLETE)]
    return [f"{item.place}: {item.reason}" for item in bad[:most]]


def compared(decision: Decision) -> str:
    """With what the run was compared."""
    if decision.baseline is None:
        return "against: nothing (portable rules)"
    commit = str(decision.baseline.about["provenance"].get("git_commit") or "unknown")[:12]
    fitting = "not comparable" if decision.hard else "same fingerprint"
    return f"against: {printable(str(decision.baseline.folder))} (commit {printable(commit)}, {fitting})"


def worst(decision: Decision, most: int) -> list[Item]:
    """The worst items that are not skipped."""
    return [item for item in decision.items if item.state != SKIPPED][:most]


def row(item: Item) -> tuple[str, ...]:
    """An item as texts, under HEAD; rank: where one stands out."""
    ratio, before = (plain(each.ratio) if each and each.y else "" for each in (item.cell, item.baseline))
    change = percent(item.effect) if math.isfinite(item.effect) else ""
    error = scientific(item.cell.error) if item.cell and item.cell.y else ""
    rank = "" if item.rank is None else str(item.rank)
    return item.name, rank, item.label, ratio, before, change, error, item.reason


def labels(decision: Decision) -> list[str]:
    """`402 identical, 6 changed`: how many items have which label."""
    many = Counter(item.label for item in decision.items)
    return [", ".join(f"{many[label]} {label}" for label in STATE_OF if many[label]) or "nothing was measured"]


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Columns of equal width; the last is as long as it is."""
    widths = [max(len(each[place]) for each in rows) for place in range(len(rows[0]) - 1)]
    padded = [[text.ljust(width) for text, width in zip(each, (*widths, 0), strict=True)] for each in rows]
    return ["  ".join(each).rstrip() for each in padded]


def summary(decision: Decision) -> str:
    """All cells that are worth a row, the worst first, as far as a step summary holds them."""
    return _page(decision, SUMMARY_BYTES, len(decision.items))


def comment(decision: Decision) -> str:
    """The worst ten."""
    return _page(decision, COMMENT_BYTES, COMMENT_ROWS)


def _page(decision: Decision, most_bytes: int, most_rows: int) -> str:
    sign = ":white_check_mark:" if decision.exit is Exit.OK else ":x:"
    named = [text.partition(": ") for text in failed(decision, NAMED)]
    head = [
        MARK,
        f"### {sign} accuracy-check {_safe(decision.run.experiment)}: {WORDS[decision.exit]}",
        "",
        *(f"- **{_safe(place)}**: {_safe(reason)}" for place, _, reason in named),
        "",
        f"**{decision.last_line}** ({_safe('; '.join(labels(decision)))})  ",
        _safe(compared(decision)),
        "",
    ]
    head += [f"- {_safe(note)}" for note in decision.notes]
    head += ["", _line(HEAD), _line(tuple("-" for _ in HEAD))]
    rows = [_line(tuple(map(_safe, row(item)))) for item in worst(decision, most_rows)]
    free_bytes = most_bytes - len("\n".join(head).encode()) - 200  # the sentence below
    kept = sum(end <= free_bytes for end in accumulate(len(row.encode()) + 1 for row in rows))
    left = len(decision.items) - decision.count(SKIPPED) - kept
    tail = ["", f"and {count(left, 'cell')} more: see check.json or compare.html"] if left else []
    return "\n".join([*head, *rows[:kept], *tail, ""]).encode()[:most_bytes].decode(errors="ignore")


def _line(words: tuple[str, ...]) -> str:
    return f"| {' | '.join(words)} |"


def _safe(words: str) -> str:
    """Text that makes no markup, link, mention or HTML; at most 500 characters."""
    short = words if len(words) <= 500 else f"{words[:500]}..."
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", html.escape(short, quote=False).replace("@", "@\u200b"))
