"""`accuracy-publish RUN_FOLDER`: a finished run as evidence, reports/EXPERIMENT/DEVICE/ with lean tables.

`update` (`accuracy-check update`) makes it the baseline of later runs: on purpose, with a reason, never by accident.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from accuracy.cli import Parser, status_of
from accuracy.core.errors import ConfigError, printable
from accuracy.core.number import count
from accuracy.gate.decision import Decision, Question, decide, verdicts
from accuracy.gate.item import INCOMPLETE, percent
from accuracy.results import history, lean, sums, table
from accuracy.results.run_table import RunTable, read_baseline, read_run

LOG = "log.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where the evidence is; 0, or 2 where there is nothing whole to publish."""
    parser = Parser("accuracy-publish", "Publish a finished run as evidence.")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="a finished run")
    parser.add_argument("--to", type=Path, default=Path("reports"), help="default: reports")
    given = parser.parse_args(arguments)
    return status_of("accuracy-publish", lambda: print(publish(given.folder, given.to)), (ValueError,))


def publish(folder: Path, to: Path, every_digit: bool = False, lines: Mapping[str, str] | None = None) -> Path:
    """Copy a run's tables and run.json, make its report and, where the world size varies, its figure; the folder.

    every_digit: of single ranks too. lines: to append to files that stay there. Raises ConfigError for a run that is
    not finished, or that other code measured.
    """
    from accuracy.measurement.provenance import code_digest  # imports torch
    from accuracy.report import build, figure
    from accuracy.report.section import positions

    if not (folder / "run.json").exists():
        raise ConfigError(f"{folder} has no run.json; give the output_dir of a run")
    about, rows = table.read_run(folder), table.read_results(folder)
    missing = set(about["cases"]) - set(rows["case_id"])
    if missing or about["ended"] is None:
        raise ConfigError(f"{folder} is not finished ({len(missing)} cases are missing); repeat its command first")
    code = about["fingerprint"]["code"]
    if code != code_digest():
        raise ConfigError(f"{folder} was measured by other code ({code}); publish from its checkout")
    target = _target(about, to)
    files = {target / name: line.encode() for name, line in (lines or {}).items()}
    kept = {path: path.read_bytes() + line if path.exists() else line for path, line in files.items()}
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    rows = rows[rows["case_id"].isin(about["cases"])]  # the folder may hold cases of another plan
    alone = rows[~table.in_stacks(rows)]
    lean.write(lean.lean_results(rows, every_digit), target / "results.parquet")
    drawn = positions.drawn(alone, table.read_positions(folder))
    if len(drawn):
        lean.write(lean.lean_positions(drawn), target / "positions.parquet")
    table.write_json(target / "run.json", {**_without_places(about), "full_table": lean.digest(rows)})
    for path, content in kept.items():
        path.write_bytes(content)
    sums.write(target)
    build.write_report(target)
    if len(alone):
        figure.write_growth_figure(alone, target / "growth.svg")
    return target


def _target(about: dict[str, Any], to: Path) -> Path:
    """`to`/EXPERIMENT/DEVICE, as `nvidia-h200`; where real ranks had a GPU each, with the number: `nvidia-h200-x4`."""
    device = re.sub(r"[^a-z0-9]+", "-", str(about["fingerprint"]["device"]).lower()).strip("-")
    gpus = about["provenance"].get("device_count")
    several = "processes" in about["config"].get("world", ()) and gpus
    return to / re.sub(r"[^\w-]", "-", str(about["experiment"])) / (f"{device}-x{gpus}" if several else device)


def _without_places(about: dict[str, Any]) -> dict[str, Any]:
    """run.json without what was local to the machine that measured: where it wrote, and its process."""
    kept = [word for word in about["argv"] if word.split("=")[0] not in ("output_dir", "report", "reference.folder")]
    config = {key: value for key, value in about["config"].items() if key not in ("output_dir", "report", "reference")}
    return {**about, "argv": kept, "command": " ".join(kept), "config": config, "process": None}


def update(folder: Path, reason: str, to: Path) -> Path:
    """Publish the run under `to`, with a line in its history and one in its log; the folder.

    Raises ConfigError where the tree is dirty, where a verdict is `logic` or `invalid`, where something is missing or
    not finite, or where the run was measured by other code than the one at hand.
    """
    reason = " ".join(printable(reason, " ").split())  # one line
    if not reason:
        raise ConfigError("--reason is empty; say why the baseline changes, it is kept beside it")
    run = read_run(folder)
    _must_be_clean(run, to)
    _must_be_sound(decide(Question(run, verdicts=verdicts(run))))
    before = None
    with suppress(ConfigError):  # a damaged one is replaced
        before = read_baseline(_target(run.about, to))
    new = history.entry(run, reason)
    logged = f"- {new.when[:10]} {new.commit[:12]}: {reason} ({_change(run, before)})\n"
    return publish(folder, to, every_digit=True, lines={history.NAME: history.line(new), LOG: logged})


def _must_be_clean(run: RunTable, to: Path) -> None:
    if run.about["provenance"].get("dirty"):
        raise ConfigError(f"{run.folder} was measured with uncommitted changes; commit them and measure again")
    where = next(each for each in (to.absolute(), *to.absolute().parents) if each.is_dir())
    outside = ":/", f":(exclude){to.absolute().relative_to(where)}"
    command = ["git", "-C", str(where), "status", "--porcelain", "--", *outside]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{to} lies in no git repository; a baseline is kept under version control")
    changed = [line[3:] for line in done.stdout.splitlines()]
    if changed:
        raise ConfigError(f"the tree is dirty ({changed[0]}{' and others' if changed[1:] else ''}); commit first")


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
