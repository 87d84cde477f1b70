"""A run becomes the baseline that later runs are compared with: on purpose, with a reason, and never by accident."""

import subprocess
from pathlib import Path

from accuracy.core.errors import ConfigError
from accuracy.core.number import count
from accuracy.gate.decision import Decision, Question, decide
from accuracy.gate.item import INCOMPLETE, percent
from accuracy.gate.verdicts import verdicts
from accuracy.results import history
from accuracy.results.run_table import RunTable, read_baseline, read_run

LOG = "log.md"


def update(folder: Path, reason: str, to: Path) -> Path:
    """Publish the run under `to`, with a line in its history and one in its log; the folder.

    Raises ConfigError where the tree is dirty, where a verdict is `logic` or `invalid`, where something is missing or
    not finite, or where the run was measured by other code than the one at hand.
    """
    reason = history.word(reason)
    if not reason:
        raise ConfigError("--reason is empty; say why the baseline changes, it is kept beside it")
    run = read_run(folder)
    _must_be_clean(run, to)
    _must_be_sound(decide(Question(run, verdicts=verdicts(run))))
    from accuracy.cli.publish import publish_tables, target_of, write_pages  # imports torch, to know the code at hand

    target = target_of(run.about, to)
    before = _baseline(target)
    kept = {name: (target / name).read_bytes() for name in (history.NAME, LOG) if (target / name).exists()}
    try:
        _, alone = publish_tables(folder, to, every_digit=True)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for name, content in kept.items():
        (target / name).write_bytes(content)
    new = history.entry(run, reason)
    with (target / history.NAME).open("a", encoding="utf-8") as handle:
        handle.write(history.line(new))
    with (target / LOG).open("a", encoding="utf-8") as handle:
        handle.write(f"- {new.when[:10]} {new.commit[:12]}: {reason} ({_change(run, before)})\n")
    write_pages(target, alone)
    return target


def _baseline(target: Path) -> RunTable | None:
    """What is there; a damaged one is replaced."""
    try:
        return read_baseline(target)
    except ConfigError:
        return None


def _must_be_clean(run: RunTable, to: Path) -> None:
    if run.about["provenance"].get("dirty"):
        raise ConfigError(f"{run.folder} was measured with uncommitted changes; commit them and measure again")
    where = next((each for each in (to, *to.absolute().parents) if each.is_dir()), Path())
    command = ["git", "-C", str(where), "status", "--porcelain", "--", ":/", f":(exclude,top){_inside(where, to)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{to} lies in no git repository; a baseline is kept under version control")
    changed = [line[3:] for line in done.stdout.splitlines()]
    if changed:
        raise ConfigError(f"the tree is dirty ({changed[0]}{' and others' if changed[1:] else ''}); commit first")


def _inside(where: Path, to: Path) -> str:
    """`to` relative to the repository's top folder."""
    command = ["git", "-C", str(where), "rev-parse", "--show-toplevel"]
    top = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        return to.resolve().relative_to(Path(top).resolve()).as_posix()
    except ValueError:
        return to.name


def _must_be_sound(decision: Decision) -> None:
    """Excess over the portable rules may be accepted, with a reason; what is wrong or absent may not."""
    for item in decision.items:
        if item.label in ("logic", "invalid", "not finite") or item.state == INCOMPLETE:
            raise ConfigError(f"{item.name} is {item.label} ({item.reason}); no baseline is made of that")
    if not any(item.cell is not None for item in decision.items):
        raise ConfigError(f"{decision.run.folder} measured nothing; no baseline is made of that")


def _change(run: RunTable, before: RunTable | None) -> str:
    """What the new baseline changes: in errors, not in hashes."""
    if before is None:
        return "the first"
    decision = decide(Question(run, before, part=True))
    known = [item for item in decision.items if item.effect == item.effect]
    if decision.hard or not known:
        return f"no comparable cell: {decision.hard[0] if decision.hard else 'other cells'}"
    effects = sorted((item.effect, item.name) for item in known)
    return (
        f"{count(len(known), 'cell')}, from {percent(effects[0][0])} in {effects[0][1]}"
        f" to {percent(effects[-1][0])} in {effects[-1][1]}"
    )
