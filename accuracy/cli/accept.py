"""`accuracy accept RUN_FOLDER --to FOLDER`: a run becomes the baseline of later ones, its history beside it.

On purpose, with a reason where it replaces another, never by accident. It needs no version control and no clean tree:
what it records is the commit of the functions that were measured, and whether their files differed from it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from accuracy.cli import Parser, status_of
from accuracy.cli.publish import publish, target_of
from accuracy.core import fields
from accuracy.core.errors import ConfigError, printable
from accuracy.core.number import count
from accuracy.gate.decision import Decision, Question, decide, verdicts
from accuracy.gate.judge import INCOMPLETE, percent
from accuracy.results.cell import KEYS, Key, measured
from accuracy.results.run_table import RunTable, read_baseline, read_run

LOG = "log.md"
HISTORY = "history.jsonl"  # a line each time the baseline was replaced; nothing is judged by it


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where the baseline is, and its log's new line; 0, or 2 for a mistake in the command."""
    parser = Parser("accuracy accept", "Make a finished run the baseline of later ones.")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER")
    reason = "why the baseline changes, kept in its log; needed where there is one already"
    parser.add_argument("--reason", default="", metavar="TEXT", help=reason)
    parser.add_argument("--to", type=Path, default=Path("reports"), metavar="FOLDER", help="default: reports")
    given = parser.parse_args(arguments)
    return status_of("accuracy accept", lambda: _accept(given.folder, given.reason, given.to))


def _accept(folder: Path, reason: str, to: Path) -> None:
    target = accept(folder, reason, to)
    print(target, (target / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-1], sep="\n")


def accept(folder: Path, reason: str, to: Path) -> Path:
    """Publish the run under `to`, with a line in its history and one in its log; the folder.

    Raises ConfigError where a verdict is `logic` or `invalid`, where something is missing or not finite, or where a
    baseline would be replaced without a reason.
    """
    reason = " ".join(printable(reason, " ").split())  # one line
    run = read_run(folder)
    _must_be_sound(decide(Question(run, verdicts=verdicts(run))))
    target = target_of(run.about, to)
    if not reason and target.exists():
        raise ConfigError(f"{target} is a baseline already; say with --reason why it changes, that is kept beside it")
    before = None
    with suppress(ConfigError):  # a damaged one is replaced
        before = read_baseline(target)
    reason, when, commit = reason or "first", str(run.about.get("started") or ""), _commit(run.about["provenance"])
    logged = f"- {when[:10]} {commit or 'no commit'}: {reason} ({_change(run, before)})\n"
    ratios = {_text_of(key): float(f"{cell.ratio:.5g}") for key, cell in measured(run).items() if cell.y}
    entry = {"when": when, "commit": commit, "reason": reason, "x_single_device": _finite(ratios)}
    line = json.dumps(entry, allow_nan=False) + "\n"
    return publish(folder, to, every_digit=True, lines={HISTORY: line, LOG: logged}, any_code=True)


def _finite(ratios: Mapping[str, float]) -> dict[str, float]:
    return {name: ratio for name, ratio in ratios.items() if math.isfinite(ratio)}


def _text_of(key: Key) -> str:
    """A cell's key as one line, `dtype=bfloat16|variant=ring|...`: by name, and without defaults, so that neither
    another order of the fields nor a new one changes it."""
    values = fields.without_defaults(dict(zip(KEYS, key, strict=True)))
    return "|".join(sorted(f"{name}={value}" for name, value in values.items()))


def _commit(provenance: Mapping[str, Any]) -> str:
    """Of the user's functions that were measured; without any of the toolkit. 12 letters, `-dirty` behind them where
    files differed from it; nothing where no repository is known."""
    functions = provenance.get("functions")
    found = list(functions.values()) if isinstance(functions, Mapping) else []
    own = [each for one in found if isinstance(one, Mapping) for each in one.get("repositories") or ()]
    for each in own or [provenance]:
        if isinstance(each, Mapping) and each.get("git_commit"):
            return printable(str(each["git_commit"]))[:12] + ("-dirty" if each.get("dirty") else "")
    return ""


def _must_be_sound(decision: Decision) -> None:
    """Excess over the portable rules may be accepted, with a reason; what is wrong or absent may not."""
    for item in decision.items:
        if item.label in ("logic", "invalid", "not finite") or item.state == INCOMPLETE:
            raise ConfigError(f"{item.name} is {item.label} ({item.reason}); no baseline is made of that")
    if not any(item.cell is not None for item in decision.items):
        raise ConfigError(f"{decision.run.folder} measured nothing; no baseline is made of that")


def _change(run: RunTable, before: RunTable | None) -> str:
    if before is None:
        return "the first"
    decision = decide(Question(run, before, part=True))
    known = [item for item in decision.items if item.effect == item.effect]
    if decision.hard or not known:
        return f"no comparable cell: {decision.hard[0] if decision.hard else 'other cells'}"
    effects = sorted((item.effect, item.name) for item in known)
    least, most = (f"{percent(effect)} in {name}" for effect, name in (effects[0], effects[-1]))
    return f"{count(len(known), 'cell')}, from {least} to {most}"
