"""Measure again what stands in generated blocks: `make evidence`.

    python -m experiments.evidence list          the runs in parts of at most 8 minutes: finished, of other code, left
    python -m experiments.evidence gpu [PART]    measure what is left of the runs of one GPU; also cpu, gpus
    python -m experiments.evidence publish       the finished runs to reports/, an account of all to evidence.csv there

A run that ended with the same code, configuration and command is not measured again, also where it was published from
another checkout; one that was stopped goes on. Tables of earlier code stay, and their rows of evidence.csv say its
digest and commit: what is left of one state of the code is measured in a checkout of that commit.
Frozen pages are not here: no code reads their tables. `python -m experiments.blocks --changed` says what differs.
"""

import argparse
import datetime
import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from omegaconf import OmegaConf

from accuracy.cli.accept import HISTORY, accept, finished, target_of, without_places
from accuracy.core.errors import ConfigError
from accuracy.results.storage import SUMS
from accuracy.results.table import FAILED, read_side
from docs.publish import publish, write_positions

ROOT = Path(__file__).parents[1]
PART_SECONDS = 480
STAMP, ACCOUNT = "evidence.json", "evidence.csv"
DEVICES = ("gpu", "gpus", "cpu")
CHANGE_NO_NUMBER = ("tables.py", "claim.py", "claims.py", "blocks.py", "evidence.py", "evidence.yaml")
CLOCKS = ("nvidia-smi", "--query-gpu=clocks.sm,clocks.max.sm,clocks.mem", "--format=csv,noheader")
COLUMNS = (
    "identity", "code", "commit", "begun", "seconds", "device", "device_count", "driver", "clocks", "torch", "cuda",
    "triton", "flash_attn", "python", "command",
)  # fmt: skip


class Run(NamedTuple):
    """place: its folder in reports/. device: cpu, gpu (one) or gpus. seconds: of its published run. command: of a
    shell; $FOLDER is its own. files: what it leaves there, by the place in reports/; none: see docs/publish.py."""

    place: str
    device: str
    seconds: int
    command: str
    files: Mapping[str, str] = {}


def runs() -> list[Run]:
    """Return the runs that evidence.yaml lists, in its order."""
    given: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "experiments" / "evidence.yaml"))
    found = []
    for each in given:
        experiment, words = each["place"].partition("/")[0], each.pop("words", "")
        command = " ".join(f"accuracy experiment={experiment} {words} output_dir=$FOLDER report=false".split())
        found.append(Run(**{"command": command, **each}))
    return found


def numbered(device: str) -> list[tuple[int, Run]]:
    """The device's runs in their order, each with its part; a part has PART_SECONDS at most unless it is one run."""
    found: list[tuple[int, Run]] = []
    part, spent = 1, 0
    for run in (each for each in runs() if each.device == device):
        part, spent = (part + 1, 0) if spent and spent + run.seconds > PART_SECONDS else (part, spent)
        spent += run.seconds
        found.append((part, run))
    return found


def identity(run: Run) -> str:
    """Twelve digits of what decides a run's numbers: the measuring code, the configuration, the command."""
    from accuracy.measurement.provenance import code_digest  # imports torch

    own = "experiments" if run.files else f"experiments/{run.place.partition('/')[0]}"  # scripts import each other
    read = [*(ROOT / "bench").glob("*.py")] if run.place.startswith("benchmark/") else []
    read += [*(ROOT / own).rglob("*.py"), *(ROOT / own).rglob("*.yaml"), *(ROOT / "configs").rglob("*.yaml")]
    content = b"".join(path.read_bytes() for path in sorted(read) if path.name not in CHANGE_NO_NUMBER)
    return hashlib.sha256(f"{code_digest()} {run.command}".encode() + content).hexdigest()[:12]


def account(run: Run, to: Path) -> dict[str, Any]:
    """What was written of the run when it ended; empty where it has not, or was another."""
    path = folder_of(run, to) / STAMP
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found if found.get("identity") == identity(run) else {}


def published_accounts(reports: Path) -> dict[str, dict[str, Any]]:
    """What was published of runs that ended, by their place: `publish` writes it into reports/."""
    path = reports / ACCOUNT
    rows: Any = pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records") if path.is_file() else []
    return {row["run"]: row for row in rows if row["identity"]}


def is_finished(run: Run, to: Path, published: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether the run ended, here or, by the published accounts, in another checkout."""
    return bool(account(run, to)) or identity(run) == published.get(run.place, {}).get("identity")


def folder_of(run: Run, to: Path) -> Path:
    """Return the folder below `to` in which the run writes its tables."""
    return to.resolve() / run.place.replace("/", "-")


def commit_of_clean_tree(root: Path) -> str:
    """Raises ConfigError where a file is not committed, or where there is no git."""
    git = ["git", "-C", str(root)]
    status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    if status.returncode or status.stdout:
        first = status.stdout.splitlines()[0][3:] if status.stdout else f"{root} is no git checkout"
        raise ConfigError(f"evidence is measured in a clean checkout, and {first} is not committed; commit it first")
    return subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()


def measure(run: Run, to: Path, commit: str) -> bool:
    """Run the command in the run's folder; write the account there and return True if it exits with 0, else False."""
    from accuracy.measurement.provenance import code_digest, command, provenance

    folder, begun = folder_of(run, to), datetime.datetime.now(datetime.UTC)
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"FOLDER": str(folder), "PATH": paths}
    print(f"{run.place}: {run.command}", flush=True)
    for _ in range(2):  # a case that failed is tried once more, as one that found no memory beside another run
        if status := subprocess.run(run.command, shell=True, cwd=ROOT, env=environment).returncode:
            print(f"{run.place}: status {status}; the same command goes on", flush=True)
            return False
        if not failed_cases(folder):
            break
    seconds = round((datetime.datetime.now(datetime.UTC) - begun).total_seconds(), 1)
    about = provenance("cpu" if run.device == "cpu" else "cuda")
    found = {"identity": identity(run), "code": code_digest(), "commit": commit, "begun": begun.isoformat()[:19]}
    about |= {**found, "seconds": seconds, "clocks": command(*CLOCKS).partition("\n")[0], "command": run.command}
    (folder / STAMP).write_text(json.dumps({name: about.get(name) for name in COLUMNS}))
    return True


def failed_cases(folder: Path) -> int:
    """How many cases of a run's folder failed; 0 for what a script wrote."""
    rows = pd.read_parquet(folder / "results", columns=["case_id", "status"]) if (folder / "results").is_dir() else None
    return 0 if rows is None else rows.loc[rows["status"] == FAILED, "case_id"].nunique()


def publish_finished(to: Path, reports: Path) -> pd.DataFrame:
    """The finished runs' tables into reports/; a row for each run, without a digest where it has not ended."""
    rows, earlier = [], published_accounts(reports)
    for run in runs():
        about, folder = account(run, to), folder_of(run, to)
        if not about and (before := earlier.get(run.place)):
            rows.append(before)
            continue
        rows.append({"run": run.place, **{name: about.get(name) for name in COLUMNS}})
        if about and not run.files:
            target = published(run, folder, reports, f"measured again at {about['commit'][:8]}")
            seeds = pd.read_parquet(target / "results.parquet")["seed"].nunique()
            rows[-1] |= {"run": str(target.relative_to(reports)), "seeds": seeds}
            if rows[-1]["run"] != run.place:
                print(f"{run.place} is at {rows[-1]['run']} now: name it so in evidence.yaml and in tables.py")
        for place, name in run.files.items() if about else ():
            write(reports / place, (folder / name).read_bytes(), place.endswith(".gz") > name.endswith(".gz"))
    table = pd.DataFrame(rows)
    table.to_csv(reports / ACCOUNT, index=False)
    return table


def published(run: Run, folder: Path, reports: Path, why: str) -> Path:
    """Its folder in reports/, the device's or one that adds words to it; a baseline is replaced once by each run, with
    its history."""
    if not (reports / run.place / HISTORY).exists():
        device, name = target_of(json.loads((folder / "run.json").read_text()), reports).name, Path(run.place).name
        return publish(folder, reports, name=name if name.startswith(f"{device}-") else "")
    here, there = (json.loads((each / "run.json").read_text())["started"] for each in (folder, reports / run.place))
    if here == there:
        return reports / run.place
    target = accept(folder, why, reports)
    write_positions(target, finished(folder)[1], read_side(folder, "positions"))  # which its page draws
    return target


def write(path: Path, content: bytes, packed: bool) -> None:
    """A script's file and its line in SHA256SUMS; run.json without what was local to a machine."""
    if path.name == "run.json":
        content = (json.dumps(without_places(json.loads(content)), indent=1, sort_keys=True) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    if (sums := path.parent / SUMS).exists():
        names = [line.split("  ")[1] for line in sums.read_text().splitlines()]
        lines = (f"{hashlib.sha256((path.parent / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
        sums.write_text("".join(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 where a run is left or ended badly; 2 for a tree that is not committed or a part that is not there."""
    parser = argparse.ArgumentParser(prog="python -m experiments.evidence", description="Measure published runs again.")
    parser.add_argument("what", choices=("list", "publish", *DEVICES))
    parser.add_argument("part", nargs="?", type=int, help="one part of the device's runs; default: all")
    parser.add_argument("--to", type=Path, default=ROOT / "outputs" / "evidence", help="a folder a run in it")
    given = parser.parse_args(arguments)
    earlier = published_accounts(ROOT / "reports")
    if given.what == "list":
        for device, number, run in ((each, number, run) for each in DEVICES for number, run in numbered(each)):
            state = f"of {earlier[run.place]['code']}" if run.place in earlier else "left"
            state = "finished" if is_finished(run, given.to, earlier) else state
            print(f"{device:4} {number:2} {run.seconds:5} s  {state:15}  {run.place:40} {run.command}")
        return 0
    if given.what == "publish":
        table = publish_finished(given.to, ROOT / "reports")
        print(table.to_string(index=False))
        return int(table["identity"].isna().any())
    try:
        commit, found = commit_of_clean_tree(ROOT), numbered(given.what)
        if given.part is not None and not 1 <= given.part <= found[-1][0]:
            raise ConfigError(f"{given.what} has no part {given.part}; allowed: 1 to {found[-1][0]}")
    except ConfigError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    chosen = [run for number, run in found if given.part in (None, number)]
    left = [run for run in chosen if not is_finished(run, given.to, earlier)]
    ended = [measure(run, given.to, commit) for run in left]
    return int(not all(ended))


if __name__ == "__main__":
    sys.exit(main())
