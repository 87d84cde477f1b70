"""The decision's files, each whole or not at all: JSON, JUnit XML, Markdown, and a page without any script."""

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from markupsafe import Markup

from accuracy.chart.render import render
from accuracy.core.errors import printable
from accuracy.core.paths import whole_file
from accuracy.gate import by_rank, text
from accuracy.gate.decision import Decision
from accuracy.gate.exits import WORDS
from accuracy.gate.fingerprint import Entry, entries, hard, soft
from accuracy.gate.first_screen import first_screen, others
from accuracy.gate.item import FAILED, INCOMPLETE, PASSED, SKIPPED, Item
from accuracy.gate.overlay import panels
from accuracy.results import history
from accuracy.results.cell import KEYS, Cell

SCHEMA_VERSION = 1
PAGE = Path(__file__).parent / "page"
MOST_ROWS = 1000
STATES = (PASSED, FAILED, INCOMPLETE, SKIPPED)


def write(decision: Decision, folder: Path) -> None:
    """check.json, junit.xml, summary.md, comment.md and compare.html."""
    contents = {
        "check.json": record(decision).encode(),
        "junit.xml": junit(decision),
        "summary.md": text.summary(decision).encode(),
        "comment.md": text.comment(decision).encode(),
        "compare.html": page(decision),
    }
    for name, content in contents.items():
        with whole_file(folder / name) as handle:
            handle.write(content)


def record(decision: Decision) -> str:
    """Plain JSON; a number that is not finite is null."""
    baseline = decision.baseline
    content = {
        "schema_version": SCHEMA_VERSION,
        "experiment": decision.run.experiment,
        "exit": int(decision.exit),
        "outcome": WORDS[decision.exit],
        "counts": {state: decision.count(state) for state in STATES},
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
    return {
        "error_rel": _plain(cell.error),
        "x_single_device": _plain(cell.ratio),
        "x_floor": _plain(cell.floors),
        "worst_rank_x_single_device": _plain(cell.rank_ratio),
        "largest_x_single_device": _plain(cell.max_ratio),
        "log_ratio_by_seed": {str(seed): _plain(cell.y[seed]) for seed in cell.seeds},
    }


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def junit(decision: Decision) -> bytes:
    """A test case for each cell: failures are regressions and broken rules, errors what is incomplete."""
    numbers = {"tests": str(len(decision.items))}
    numbers |= {name: str(decision.count(state)) for name, state in
                (("failures", FAILED), ("errors", INCOMPLETE), ("skipped", SKIPPED))}  # fmt: skip
    suites = Element("testsuites", numbers)
    suite = SubElement(suites, "testsuite", {"name": f"accuracy-check {decision.run.experiment}", **numbers})
    notes = {f"note {place}": note for place, note in enumerate(decision.notes)}
    _properties(suite, {**hard(decision.run.about), "exit": str(int(decision.exit)), **notes})
    for item in decision.items:
        _case(suite, item, decision.run.experiment)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)


def _case(suite: Element, item: Item, experiment: str) -> None:
    variant = item.name.partition(" ")[0] if item.key is None else str(item.key[KEYS.index("variant")])
    setting = item.name.removeprefix(variant).strip()
    case = SubElement(
        suite, "testcase", {"classname": printable(f"{experiment}.{variant}"), "name": printable(setting or variant)}
    )
    key = {} if item.key is None else {name: str(value) for name, value in zip(KEYS, item.key, strict=True)}
    _properties(case, {"label": item.label, **key, **_metrics(item)})
    if item.state == SKIPPED:
        SubElement(case, "skipped", {"message": printable(item.reason)})
    elif item.state in (FAILED, INCOMPLETE):
        tag = "failure" if item.state == FAILED else "error"
        SubElement(case, tag, {"type": item.label, "message": printable(f"{item.place}: {item.reason}")})


def _metrics(item: Item) -> dict[str, str]:
    numbers = {"effect": item.effect, "p": item.p, "seen": item.seen}
    if item.cell is not None and item.cell.y:
        numbers |= {
            "x_single_device": item.cell.ratio,
            "error_rel": item.cell.error,
            "worst_rank": item.cell.rank_ratio,
        }
    if item.baseline is not None and item.baseline.y:
        numbers |= {"baseline_x_single_device": item.baseline.ratio, "baseline_error_rel": item.baseline.error}
    return {name: f"{value:.6g}" for name, value in numbers.items() if math.isfinite(value)}


def _properties(parent: Element, values: dict[str, str]) -> None:
    properties = SubElement(parent, "properties")
    for name, value in values.items():
        SubElement(properties, "property", {"name": printable(name), "value": printable(value)})


def page(decision: Decision) -> bytes:
    """compare.html, self-contained."""
    past = history.read(decision.baseline.folder) if decision.baseline is not None else []
    shown = text.worst(decision, MOST_ROWS)
    trends = [history.trend(item.key, past, item.cell) if item.key else [] for item in shown]
    skipped = [item for item in decision.items if item.state == SKIPPED]
    growth, ranks = panels(decision), by_rank.panels(decision)
    first = first_screen(decision, ranks, growth)
    return render(
        PAGE,
        "compare.html.jinja",
        decision=decision,
        outcome=WORDS[decision.exit],
        first=first,
        rows=[(item, text.row(item), history.sparkline(trend)) for item, trend in zip(shown, trends, strict=True)],
        left=len(decision.items) - len(skipped) - len(shown),
        skipped=skipped,
        entries=_entries(decision),
        growth=others(growth, first),
        by_rank=others(ranks, first),
        past=past,
        own_style=Markup((PAGE / "compare.css").read_text(encoding="utf-8")),
    )


def _entries(decision: Decision) -> list[tuple[str, Entry]]:
    """Hard entries first; without a baseline its side is empty."""
    found = []
    for kind, read in (("hard", hard), ("soft", soft)):
        own = read(decision.run.about)
        old = read(decision.baseline.about) if decision.baseline else dict.fromkeys(own, "")
        found += [(kind, entry) for entry in entries(old, own)]
    return found
