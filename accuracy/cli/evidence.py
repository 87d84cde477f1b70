"""`accuracy-evidence`: measure every published run of this machine again, with the code that is here.

In: reports/EXPERIMENT/DEVICE/run.json, each with the command that measured it and the time that it took. Out: the same
folders, measured by one state of the code, in as many calls as it takes: what is done already, or does not fit into the
minutes that are left, is skipped and said.
"""

import json
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from accuracy.cli import Parser, status_of
from accuracy.cli.accept import accept
from accuracy.cli.publish import device_folder, publish, target_of
from accuracy.core.errors import ConfigError
from accuracy.core.number import count
from accuracy.results import history

SLOWER = 1.5  # times the time that a run took before may pass


@dataclass(frozen=True)
class Part:
    """A published run. folder: in reports; command: its words without the program; place: EXPERIMENT/DEVICE of the
    machine that measured it; code: the digest of what measured it; seconds: how long that took."""

    folder: Path
    command: tuple[str, ...]
    place: Path
    code: str
    seconds: float

    @property
    def name(self) -> str:
        """`te_growth/nvidia-h200`."""
        return f"{self.experiment}/{self.folder.name}"

    @property
    def experiment(self) -> str:
        """`te_growth`."""
        return self.folder.parent.name


def main(words: Sequence[str] | None = None) -> int:
    """0; 1 where a run failed; 2 for a mistake, among them a tree whose code is not committed."""
    parser = Parser("accuracy-evidence", "Measure this machine's published runs again, with the code that is here.")
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="these alone; default: all")
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="default: reports")
    parser.add_argument("--runs", type=Path, default=Path("outputs/evidence"), help="default: outputs/evidence")
    parser.add_argument("--minutes", type=float, default=20.0, help="start no run that would end later; default: 20")
    parser.add_argument("--dry-run", action="store_true", help="say what would be measured")
    given = parser.parse_args(words)
    return status_of("accuracy-evidence", lambda: _measure(given))


def parts(reports: Path) -> Iterator[Part]:
    """The published runs that say by which command they were measured, the shortest first."""
    found = []
    for path in sorted(reports.glob("*/*/run.json")):
        about = json.loads(path.read_text())
        if about.get("command") and about.get("ended"):
            took = datetime.fromisoformat(about["ended"]) - datetime.fromisoformat(about["started"])
            command, code = tuple(shlex.split(about["command"])[1:]), str(about["fingerprint"]["code"])
            found.append(Part(path.parent, command, target_of(about, Path()), code, took.total_seconds()))
    return iter(sorted(found, key=lambda part: (part.seconds, part.name)))


def _measure(given: Namespace) -> int:
    reports, wanted = given.reports, set(given.experiments)
    found = list(parts(reports))
    published = {part.experiment for part in found}
    if unknown := wanted - published:
        names = ", ".join(sorted(published))
        raise ConfigError(f"{', '.join(sorted(unknown))}: no published run of it in {reports}; published are {names}")
    here, code = _machine()
    ends, failed, left = time.monotonic() + 60 * given.minutes, 0, []
    mine = [part for part in found if part.place.name in here and (not wanted or part.experiment in wanted)]
    if not mine:
        raise ConfigError(f"{reports}: no published run is of this machine ({', '.join(here)}); publish one first")
    for part in mine:
        if part.code == code:
            continue
        if given.dry_run or time.monotonic() + SLOWER * part.seconds > ends:
            left.append(part)
        else:
            failed += _again(part, reports, given.runs / part.name)
    for part in left:
        print(f"left: {part.name}, {part.seconds:.0f} s: accuracy {shlex.join(part.command)}")
    done = len(mine) - len(left) - failed
    print(f"{count(done, 'run')} of {len(mine)} have code {code}, {failed} failed, {len(left)} left for another call")
    return int(failed > 0)


def _machine() -> tuple[list[str], str]:
    """The names of folders that this machine measures, and the digest of its code."""
    from accuracy.measurement.provenance import provenance  # imports torch
    from accuracy.runtime import device

    names, about = set(), {}
    for name in sorted({"cpu", device.choose("auto")}):
        about = provenance(name)
        names |= {device_folder(about["device"], gpus) for gpus in (0, about.get("device_count") or 0)}
    if about["dirty"]:
        raise ConfigError("accuracy/ or configs/ differ from the commit; commit first: evidence is of one state")
    return sorted(names), about["code"]


def _again(part: Part, reports: Path, run: Path) -> bool:
    """Whether the run failed. One that was stopped goes on where it was."""
    print(f"measuring {part.name}, {part.seconds:.0f} s before: accuracy {shlex.join(part.command)}", flush=True)
    words = [word for word in part.command if not word.startswith("output_dir=")]
    done = subprocess.run([sys.executable, "-m", "accuracy", *words, f"output_dir={run}"], check=False)
    if done.returncode:
        print(f"failed with exit status {done.returncode}: {part.name}")
        return True
    if (part.folder / history.NAME).exists():
        accept(run, "evidence of one state of the code", reports)
    else:
        publish(run, reports, name=part.folder.name)
    return False
