"""`accuracy accept RUN_FOLDER --to FOLDER`: a run becomes the baseline of later ones, its history beside it.

On purpose, with a reason where it replaces another, never by accident. It needs no version control and no clean tree:
what it records is the commit of the functions that were measured, and whether their files differed from it.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from accuracy.cli import Parser, path_of, show, status_of
from accuracy.core.errors import ConfigError, printable
from accuracy.core.number import count
from accuracy.core.paths import whole_folder
from accuracy.gate.decision import Decision, Question, decide, verdicts
from accuracy.gate.fingerprint import commit_of
from accuracy.gate.judge import INCOMPLETE, MEASURES, percent
from accuracy.gate.rules import SEEDS
from accuracy.gate.statistics import LEVEL, RISE, seen
from accuracy.results import run_table, storage, table
from accuracy.results.cell import Cell, measured
from accuracy.results.run_table import RunTable, named_faults, read_baseline, read_run

LEAST_SEEDS = 2  # that have a spread
ADVISED_SEEDS = 24
LOG = "log.md"
HISTORY = "history.jsonl"  # a line each time the baseline was replaced; nothing is judged by it


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where the baseline is, and its log's new line; 0, or 2 for a mistake in the command."""
    parser = Parser("accuracy accept", "Make a finished run the baseline of later ones.")
    parser.add_argument("folder", type=path_of, metavar="RUN_FOLDER")
    reason = "why the baseline changes, kept in its log; needed where there is one already"
    parser.add_argument("--reason", default="", metavar="TEXT", help=reason)
    parser.add_argument("--to", type=path_of, default=Path("reports"), metavar="FOLDER", help="default: reports")
    parser.add_argument("--force", action="store_true", help="take a baseline of one seed, which no test can use")
    given = parser.parse_args(arguments)
    return status_of("accuracy accept", lambda: _accept(given.folder, given.reason, given.to, given.force))


def _accept(folder: Path, reason: str, to: Path, force: bool) -> None:
    target = accept(folder, reason, to, force)
    taken = worth(measured(read_baseline(target)).values())
    show(target, taken, (target / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-1])


def worth(cells: Collection[Cell]) -> str:
    """What a baseline of these cells is good for: its seeds, its cells, and the rise that a check of it catches."""
    known = [each for each in cells if each.y]
    seeds = min((len(each.y) for each in known), default=0)
    taken = f"{count(seeds, 'seed')} in each of {count(len(known), 'cell')}"
    if seeds < LEAST_SEEDS:
        return f"{taken}: no test can use it"
    error = np.array([np.std(each.values(), ddof=1) * math.sqrt(1 / SEEDS + 1 / len(each.y)) for each in known])
    freedom = np.array([SEEDS + len(each.y) - 2 for each in known])
    rises = seen(error, freedom, LEVEL / len(known) / len(MEASURES))
    sure = count(int((rises <= RISE).sum()), "cell")
    fewer = f"; {ADVISED_SEEDS} seeds catch smaller rises" if seeds < ADVISED_SEEDS else ""
    largest = percent(float(rises.max()))
    return f"{taken}: {SEEDS} fresh seeds surely catch a rise of 10% in {sure}, of {largest} in all{fewer}"


def accept(folder: Path, reason: str, to: Path, force: bool = False) -> Path:
    """Write the run's table and run.json under `to`, with a line in its history and one in its log; the folder.

    force: also of one seed. Raises ConfigError where a verdict is `logic` or `invalid`, where something is missing or
    not finite, where there is one seed alone, or where a baseline would be replaced without a reason.
    """
    reason = " ".join(printable(reason, " ").split())  # one line
    run = read_run(folder)
    with named_faults(run):
        _must_be_sound(decide(Question(run, verdicts=verdicts(run))))
    if not force and (few := [each for each in measured(run).values() if each.y and len(each.y) < LEAST_SEEDS]):
        raise ConfigError(
            f"{folder} has {count(len(few[0].y), 'seed')} in {count(len(few), 'cell')}, and no test can use fewer than"
            f" {LEAST_SEEDS}; measure seed=[{','.join(map(str, range(ADVISED_SEEDS)))}], or say --force"
        )
    target = target_of(run.about, to)
    if not reason and target.exists():
        raise ConfigError(f"{target} is a baseline already; say with --reason why it changes, that is kept beside it")
    before = None
    with suppress(ConfigError):  # a damaged one is replaced
        before = read_baseline(target)
    reason, when, commit = reason or "first", str(run.about.get("started") or ""), commit_of(run.about["provenance"])
    entry = {"when": when, "commit": commit, "reason": reason, "change": _change(run, before)}
    logged = f"- {when[:10]} {commit or 'no commit'}: {reason} ({entry['change']})\n"
    _write(folder, target, {HISTORY: json.dumps(entry) + "\n", LOG: logged})
    return target


def _write(folder: Path, target: Path, lines: Mapping[str, str]) -> None:
    """The baseline in place of the one before, as a whole. lines: to append to files that were there."""
    about, rows = finished(folder)
    with whole_folder(target) as new:
        for name, line in lines.items():
            before = (target / name).read_bytes() if (target / name).exists() else b""
            ended = not before or before.endswith(b"\n")  # a damaged one may not
            (new / name).write_bytes(before + (b"" if ended else b"\n") + line.encode())
        storage.write_table(storage.lean_results(rows), new / "results.parquet")
        storage.write_json(new / "run.json", without_places(about))
        storage.write_sums(new)


def finished(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """run.json, and the rows of the planned cases. Raises ConfigError for a run that is not finished."""
    about, rows = table.read_run(folder), table.read_results(folder)
    missing = set(about["cases"]) - set(rows["case_id"])
    if missing or about.get("ended") is None:
        raise ConfigError(f"{folder} is not finished ({len(missing)} cases are missing); repeat its command first")
    return about, rows[rows["case_id"].isin(about["cases"])]


def target_of(about: dict[str, Any], to: Path) -> Path:
    """`to`/EXPERIMENT/DEVICE, as `nvidia-h200`; where real ranks had a GPU each, with the number: `nvidia-h200-x4`.
    Raises ConfigError where run.json lacks what is published of it."""
    if fault := run_table.damage_of_record(about):
        raise ConfigError(f"run.json {fault}")
    gpus = about["provenance"].get("device_count")
    several = "processes" in str(about["config"].get("world")) and isinstance(gpus, int)
    device = re.sub(r"[^a-z0-9]+", "-", str(about["fingerprint"]["device"]).lower()).strip("-")
    name = f"{device}-x{gpus}" if several and gpus else device
    return to / re.sub(r"[^\w-]", "-", str(about["experiment"])) / name


def without_places(about: dict[str, Any]) -> dict[str, Any]:
    """run.json without what was local to the machine that measured (where it wrote, its process), and without the plan,
    which a finished run has measured as a whole."""
    words = [str(word) for word in about["argv"]]
    words = [word for word in words if word.split("=")[0] not in ("output_dir", "report")]
    config = {key: value for key, value in about["config"].items() if key not in ("output_dir", "report", "reference")}
    rest = {name: value for name, value in about.items() if name != "plan"}
    return {**rest, "argv": words, "command": " ".join(words), "config": config, "process": None}


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
