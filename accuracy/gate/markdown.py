"""The decision as Markdown: for GitHub's step summary and for a comment on a pull request, each within its limit."""

import re

from accuracy.core.number import count
from accuracy.gate import text
from accuracy.gate.decision import Decision
from accuracy.gate.exits import WORDS, Exit

SUMMARY_BYTES = 2**20  # of a step; what is above is not shown at all
COMMENT_BYTES = 65_536  # in characters, GitHub says; bytes are never fewer
COMMENT_ROWS = 10
MARK = "<!-- accuracy-check -->"  # by which a comment is found again


def summary(decision: Decision) -> str:
    """All cells that are worth a row, the worst first, as far as a step summary holds them."""
    return _page(decision, SUMMARY_BYTES, len(decision.items))


def comment(decision: Decision) -> str:
    """The worst ten."""
    return _page(decision, COMMENT_BYTES, COMMENT_ROWS)


def _page(decision: Decision, most_bytes: int, most_rows: int) -> str:
    sign = ":white_check_mark:" if decision.exit is Exit.OK else ":x:"
    head = [
        MARK,
        f"### {sign} accuracy-check {_safe(decision.run.experiment)}: {WORDS[decision.exit]}",
        "",
        f"**{decision.last_line}** ({_safe('; '.join(text.labels(decision)))})  ",
        _safe(text.compared(decision)),
        "",
    ]
    head += [f"- {_safe(note)}" for note in decision.notes]
    head += ["", _line(text.HEAD), _line(tuple("-" for _ in text.HEAD))]
    rows = [_line(tuple(_safe(word) for word in text.row(item))) for item in text.worst(decision, most_rows)]
    left = len(text.worst(decision, len(decision.items))) - len(rows)
    return _within(head, rows, left, most_bytes)


def _within(head: list[str], rows: list[str], left: int, most_bytes: int) -> str:
    """As many rows as fit; how many were left out is said."""
    free_bytes = most_bytes - len("\n".join(head).encode()) - 200  # the sentence below
    kept = 0
    for row in rows:
        free_bytes -= len(row.encode()) + 1
        if free_bytes < 0:
            break
        kept += 1
    left += len(rows) - kept
    tail = ["", f"and {count(left, 'cell')} more: see check.json or compare.html"] if left else []
    return "\n".join([*head, *rows[:kept], *tail, ""]).encode()[:most_bytes].decode(errors="ignore")


def _line(words: tuple[str, ...]) -> str:
    return f"| {' | '.join(words)} |"


def _safe(words: str) -> str:
    """Text that makes no markup, link, mention or HTML; at most 500 characters."""
    short = words if len(words) <= 500 else f"{words[:500]}..."
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("@", "@\u200b")):
        short = short.replace(letter, entity)
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", short)
