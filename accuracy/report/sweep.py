"""A sweep's jobs as one run: `sweep.json` in its folder names the folders of its jobs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.report.folder import NoReport, Run, read_folder
from accuracy.results.storage import write_json

SWEEP = "sweep.json"


def write_sweep(folder: Path, words: Sequence[str], jobs: Sequence[Path]) -> None:
    """Say of a folder that it is a sweep's. words: of its command; jobs: the folders of its runs."""
    write_json(folder / SWEEP, {"argv": list(words), "jobs": [str(job.resolve()) for job in jobs]})


def read(folder: Path, results: pd.DataFrame | None = None) -> Run:
    """A run's folder, whose results may be known, or a sweep's. Raises NoReport where no job has a table."""
    if not (folder / SWEEP).is_file():
        return read_folder(folder, results)
    try:
        about = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
        words, jobs = list(map(str, about["argv"])), [Path(job) for job in about["jobs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NoReport(f"{folder / SWEEP} cannot be read ({error}); repeat the sweep's command") from error
    runs = []
    for job in jobs:
        try:
            runs.append(read_folder(job))
        except NoReport:  # a job that measured nothing leaves the others alone
            continue
    if not runs:
        raise NoReport(f"{folder}: none of its {len(jobs)} jobs holds results; repeat the sweep's command")
    return joined(runs, words)


def joined(runs: Sequence[Run], words: list[str]) -> Run:
    """Tables below each other; a case that two jobs have, once."""
    kinds = ("results", "stacks", "positions", "steps", "hypotheses")
    tables: dict[str, list[pd.DataFrame]] = {kind: [] for kind in kinds}
    seen: set[str] = set()
    for run in runs:
        mine = {*run.cases["case_id"]}
        for kind in kinds:
            rows = getattr(run, kind)
            tables[kind].append(rows[~rows["case_id"].isin(seen)])
        seen |= mine
    whole = {kind: _below(frames) for kind, frames in tables.items()}
    return Run(**whole, record=_record([run.record for run in runs], words), problem=runs[0].problem)


def _below(frames: list[pd.DataFrame]) -> pd.DataFrame:
    full = [frame for frame in frames if len(frame)] or frames[:1]
    return pd.concat(full, ignore_index=True)


def _record(records: list[dict[str, Any]], words: list[str]) -> dict[str, Any]:
    """run.json of the whole: what all jobs say alike, the sum of the plans, the first start, the last end."""
    names = {str(record.get("experiment")) for record in records}
    cases = list(dict.fromkeys(case for record in records for case in record.get("cases", ())))
    ends = [record.get("ended") for record in records]
    keys = dict.fromkeys(key for record in records for key in record.get("config", {}))
    return {
        **records[0],
        "experiment": names.pop() if len(names) == 1 else "adhoc",
        "command": " ".join(words),
        "argv": words,
        "config": {key: _alike([record.get("config", {}).get(key) for record in records]) for key in keys},
        "cases": cases,
        "planned": len(cases),
        "ended": None if None in ends else max(map(str, ends)),
    }


def _alike(values: list[Any]) -> Any:
    """The value of all jobs, or the values job by job."""
    return values[0] if all(value == values[0] for value in values) else {"of the jobs": values}
