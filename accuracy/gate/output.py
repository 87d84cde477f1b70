"""The decision for a terminal, and its files, each whole or not at all: JSON, JUnit XML, and Markdown for GitHub's step
summary and comments, within their limits."""

import html
import json
import math
import re
import shlex
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from accuracy.core import fields
from accuracy.core.errors import printable
from accuracy.core.number import count, plain, scientific
from accuracy.core.paths import whole_file
from accuracy.core.plugins import PREFIX
from accuracy.gate import ADVICE, WORDS, Exit
from accuracy.gate.decision import Decision
from accuracy.gate.fingerprint import commit_of, hard, soft
from accuracy.gate.judge import FAILED, INCOMPLETE, PASSED, SKIPPED, STATE_OF, Item, percent
from accuracy.results.cell import KEYS, Cell

SCHEMA_VERSION = 1
SUMMARY_BYTES = 2**20  # of a step; what is above is not shown at all
COMMENT_BYTES = 65_536  # in characters, GitHub says; bytes are never fewer
COMMENT_ROWS = 10
NAMED = 3  # failed cells above all else
MARK = "<!-- accuracy-check -->"  # by which a comment is found again
HEAD = ("cell", "rank", "label", "x single device", "baseline", "change", "error", "reason")


def terminal(decision: Decision, most: int = 10) -> str:
    """All of the text; the last line is `N passed, N failed, N skipped`."""
    lines = [_headline(decision), compared(decision), ""]
    rows = [head(decision), *(row(item, decision.by_floor) for item in worst(decision, most))]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]  # the last is as long as it is
    lines += ["  ".join(map(str.ljust, each, (*widths, 0))).rstrip() for each in rows]
    left = len(decision.items) - decision.count(SKIPPED) - most
    lines += [f"and {count(left, 'cell')} more", ""] if left > 0 else [""]
    lines += [labels(decision), *decision.notes, *_to_do(decision), decision.last_line]
    return "\n".join(lines)


def advice(decision: Decision) -> str:
    """Return a sentence that tells whoever reads the outcome what to do: mend, accept, repeat, or diagnose."""
    if decision.exit is not Exit.LOGIC:
        return ADVICE[decision.exit]
    bug = next((item for item in decision.items if item.label == "logic" and item.key), None)
    rows, name = decision.run.results, bug.key[KEYS.index("variant")] if bug and bug.key else ""
    words = [each for row in rows[rows["variant"] == name].head(1).to_dict("records") for each in fields.words(row)]
    command = shlex.join(["accuracy", "experiment=diagnose", *(each for each in words if each.startswith("variant"))])
    if f"fn={PREFIX}" in command:  # which no other process has
        command = f"accuracy.diagnose({name})"
    return f"No baseline excuses a wrong schedule: {command} names the step."


def _to_do(decision: Decision) -> list[str]:
    return [] if decision.exit is Exit.OK else [advice(decision)]


def _headline(decision: Decision) -> str:
    """One sentence: the outcome, its gravest reason, and whether a worse kernel could hide in single device's error."""
    outcome = f"accuracy check {decision.run.experiment}: {WORDS[decision.exit]}"
    if decision.alone:
        lacking = "in the matrix" if decision.by_floor else f"for {count(decision.alone, 'cell')}"
        outcome += f" (no variant=single_device {lacking}: judged by the rounding floor as well)"
    return ". ".join([outcome, *failed(decision, 1)])


def failed(decision: Decision, most: int) -> list[str]:
    """`ring bfloat16 W=4 dq, rank 2: +30% ...`, the worst first."""
    bad = [item for item in decision.items if item.state in (FAILED, INCOMPLETE)]
    return [f"{item.where}: {item.reason}" for item in bad[:most]]


def compared(decision: Decision) -> str:
    """With what the run was compared."""
    name, commit = origin(decision)
    fitting = "not comparable" if decision.hard else "same fingerprint"
    return f"against: {name} (commit {commit or 'unknown'}, {fitting})" if name else "against: nothing (portable rules)"


def origin(decision: Decision) -> tuple[str, str]:
    """Folder and commit of the baseline, empty where there is none."""
    if decision.baseline is None:
        return "", ""
    return printable(str(decision.baseline.folder)), commit_of(decision.baseline.about["provenance"])


def worst(decision: Decision, most: int) -> list[Item]:
    """The worst items that are not skipped."""
    return [item for item in decision.items if item.state != SKIPPED][:most]


def head(decision: Decision) -> tuple[str, ...]:
    """What stands above `row`."""
    return tuple("x floor" if decision.by_floor and name == "x single device" else name for name in HEAD)


def row(item: Item, by_floor: bool = False) -> tuple[str, ...]:
    """An item as texts, under `head`; rank: where one stands out. by_floor: see `Decision`."""
    numbers = (each and each.y and (each.floors if by_floor else each.ratio) for each in (item.cell, item.baseline))
    ratio, before = (plain(each) if each else "" for each in numbers)
    change = percent(item.effect) if math.isfinite(item.effect) else ""
    error = scientific(item.cell.error) if item.cell and item.cell.y else ""
    rank = "" if item.rank is None else str(item.rank)
    return item.name, rank, item.label, ratio, before, change, error, item.reason


def labels(decision: Decision) -> str:
    """`402 identical, 6 changed`: how many items have which label."""
    found = many(decision)
    return ", ".join(f"{found[label]} {label}" for label in STATE_OF if found[label]) or "nothing was measured"


def many(decision: Decision) -> Counter[str]:
    """Count the items of each label."""
    return Counter(item.label for item in decision.items)


def write(decision: Decision, folder: Path) -> None:
    """check.json, junit.xml, summary.md and comment.md."""
    contents = {
        "check.json": _record(decision).encode(),
        "junit.xml": _junit(decision),
        "summary.md": markdown(decision, SUMMARY_BYTES, len(decision.items)).encode(),
        "comment.md": markdown(decision, COMMENT_BYTES, COMMENT_ROWS).encode(),
    }
    for name, content in contents.items():
        with whole_file(folder / name) as handle:
            handle.write(content)


def markdown(decision: Decision, most_bytes: int, most_rows: int) -> str:
    """The outcome, the failed cells and a table of the worst, as far as so many bytes hold them."""
    sign = ":white_check_mark:" if decision.exit is Exit.OK else ":x:"
    named = [text.partition(": ") for text in failed(decision, NAMED)]
    top = [
        MARK,
        f"### {sign} accuracy check {_safe(decision.run.experiment)}: {WORDS[decision.exit]}",
        "",
        *(f"- **{_safe(where)}**: {_safe(reason)}" for where, _, reason in named),
        "",
        f"**{decision.last_line}** ({_safe(labels(decision))})  ",
        _safe(compared(decision)),
        "",
        *(f"- {_safe(note)}" for note in (*decision.notes, *_to_do(decision))),
        "",
        _line(head(decision)),
        _line(tuple("-" for _ in HEAD)),
    ]
    rows = [_line(tuple(map(_safe, row(item, decision.by_floor)))) for item in worst(decision, most_rows)]
    free_bytes = most_bytes - len("\n".join(top).encode()) - 200  # the sentence below
    shown = sum(end <= free_bytes for end in accumulate(len(row.encode()) + 1 for row in rows))
    left = len(decision.items) - decision.count(SKIPPED) - shown
    tail = ["", f"and {count(left, 'cell')} more: see check.json"] if left else []
    return "\n".join([*top, *rows[:shown], *tail, ""]).encode()[:most_bytes].decode(errors="ignore")


def _line(words: tuple[str, ...]) -> str:
    return f"| {' | '.join(words)} |"


def _safe(words: str) -> str:
    """Text that makes no markup, link, mention or HTML; at most 500 characters."""
    short = words if len(words) <= 500 else f"{words[:500]}..."
    return re.sub(r"([\\`*_{}\[\]()#!|~$])", r"\\\1", html.escape(short, quote=False).replace("@", "@\u200b"))


def _record(decision: Decision) -> str:
    """Plain JSON; a number that is not finite is null."""
    baseline = decision.baseline
    content = {
        "schema_version": SCHEMA_VERSION,
        "experiment": decision.run.experiment,
        "exit": int(decision.exit),
        "outcome": WORDS[decision.exit],
        "counts": {state: decision.count(state) for state in (PASSED, FAILED, INCOMPLETE, SKIPPED)},
        "fingerprint": {"hard": hard(decision.run.about), "soft": soft(decision.run.about)},
        "baseline": baseline and {
            "folder": str(baseline.folder),
            "git_commit": baseline.about["provenance"].get("git_commit"),
            "comparable": not decision.hard,
            "hard_differences": [each._asdict() for each in decision.hard],
            "soft_differences": [each._asdict() for each in decision.soft],
        },
        "notes": list(decision.notes),
        "items": [_item(item) for item in decision.items],
    }  # fmt: skip
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _item(item: Item) -> dict[str, Any]:
    return {
        **{name: getattr(item, name) for name in ("name", "label", "state", "reason")},
        "key": None if item.key is None else dict(zip(KEYS, map(_plain, item.key), strict=True)),
        **{name: _plain(getattr(item, name)) for name in ("effect", "p", "seen", "rank")},
        "run": _numbers(item.cell),
        "baseline": _numbers(item.baseline),
    }


def _numbers(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None or not cell.y:
        return None
    numbers = {
        "error_rel": cell.error, "x_single_device": cell.ratio, "x_floor": cell.floors,
        "worst_rank_x_single_device": cell.rank_ratio, "largest_x_single_device": cell.max_ratio,
    }  # fmt: skip
    by_seed = {str(seed): _plain(cell.y[seed]) for seed in cell.seeds}
    return {name: _plain(value) for name, value in numbers.items()} | {"log_ratio_by_seed": by_seed}


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _junit(decision: Decision) -> bytes:
    """A test case for each cell: failures are regressions and broken rules, errors what is incomplete."""
    states = {"failures": FAILED, "errors": INCOMPLETE, "skipped": SKIPPED}
    numbers = {"tests": str(len(decision.items))} | {name: str(decision.count(each)) for name, each in states.items()}
    suites = Element("testsuites", numbers)
    suite = SubElement(suites, "testsuite", {"name": f"accuracy check {decision.run.experiment}", **numbers})
    notes = {f"note {number}": note for number, note in enumerate(decision.notes)}
    _properties(suite, {**hard(decision.run.about), "exit": str(int(decision.exit)), **notes})
    for item in decision.items:
        variant = item.name.partition(" ")[0] if item.key is None else str(item.key[KEYS.index("variant")])
        name = item.name.removeprefix(variant).strip() or variant
        classname = f"{decision.run.experiment}.{variant}"
        case = SubElement(suite, "testcase", {"classname": printable(classname), "name": printable(name)})
        key = {} if item.key is None else {name: str(value) for name, value in zip(KEYS, item.key, strict=True)}
        _properties(case, {"label": item.label, **key, **_metrics(item)})
        if item.state == SKIPPED:
            SubElement(case, "skipped", {"message": printable(item.reason)})
        elif item.state in (FAILED, INCOMPLETE):
            tag = "failure" if item.state == FAILED else "error"
            SubElement(case, tag, {"type": item.label, "message": printable(f"{item.where}: {item.reason}")})
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)


def _metrics(item: Item) -> dict[str, str]:
    numbers = {"effect": item.effect, "p": item.p, "seen": item.seen}
    if (cell := item.cell) is not None and cell.y:
        numbers |= {"x_single_device": cell.ratio, "error_rel": cell.error, "worst_rank": cell.rank_ratio}
    if (old := item.baseline) is not None and old.y:
        numbers |= {"baseline_x_single_device": old.ratio, "baseline_error_rel": old.error}
    return {name: f"{value:.6g}" for name, value in numbers.items() if math.isfinite(value)}


def _properties(parent: Element, values: dict[str, str]) -> None:
    properties = SubElement(parent, "properties")
    for name, value in values.items():
        SubElement(properties, "property", {"name": printable(name), "value": printable(value)})
