"""`accuracy accept RUN_FOLDER --to FOLDER`: a run becomes the baseline of later ones, its history beside it.

On purpose, with a reason where it replaces another, never by accident. It needs no version control and no clean tree:
what it records is the commit of the functions that were measured, and whether their files differed from it.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from accuracy.cli import Parser, status_of
from accuracy.cli.publish import publish, target_of
from accuracy.core.errors import ConfigError, printable
from accuracy.core.number import count
from accuracy.gate.decision import Decision, Question, decide, verdicts
from accuracy.gate.item import INCOMPLETE, percent
from accuracy.results import history
from accuracy.results.run_table import RunTable, read_baseline, read_run

LOG = "log.md"


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
    new = history.entry(run, reason or "first")
    logged = f"- {new.when[:10]} {new.commit or 'no commit'}: {new.reason} ({_change(run, before)})\n"
    return publish(folder, to, every_digit=True, lines={history.NAME: history.line(new), LOG: logged}, any_code=True)


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
