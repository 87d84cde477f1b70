"""What is in the folder of a run, or of a sweep's runs? Reads tables and `run.json`, also of a run killed midway.

Only results are required. Everything else may be missing, and the report says what is. A sweep's folder has
`sweep.json`, which names the folders of its jobs: these are read as one run.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from accuracy.core import fields
from accuracy.core.errors import ConfigError
from accuracy.report import series
from accuracy.report.matrix import furthest_first
from accuracy.results import storage, table
from accuracy.results.claim import Claim, judge
from accuracy.results.storage import write_json
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import NOT_MEASURED
from accuracy.verdict.rows import in_blocks, names_of, with_names
from accuracy.verdict.verdict import verdicts

SWEEP = "sweep.json"
DIAGNOSE = "diagnose"  # the experiment that is made for any variant


class NoReport(ConfigError):
    """The folder cannot be reported on; the message says what was given, what is expected and what to do."""


@dataclass(frozen=True)
class Run:
    """A run folder's content. results: one row per (case, tensor, rank); positions: error along the
    sequence."""

    results: pd.DataFrame
    positions: pd.DataFrame
    steps: pd.DataFrame
    hypotheses: pd.DataFrame
    record: dict[str, Any]  # run.json; empty where it is missing or unreadable
    problem: str | None  # what is wrong with run.json, if anything

    @property
    def experiment(self) -> str:
        """Name of the experiment, "adhoc" where none was chosen."""
        return str(self.record.get("experiment") or "adhoc")

    @property
    def is_of_a_user(self) -> bool:
        """Whether it answers somebody's question about a function or a variant: our experiments' notes are none."""
        return self.experiment == DIAGNOSE or bool(self.results["options"].map(fields.is_foreign).any())

    @property
    def cases(self) -> pd.DataFrame:
        """The first row of every case: its identity and status."""
        return self.results.drop_duplicates("case_id")

    @property
    def measured(self) -> pd.DataFrame:
        """The rows that hold numbers."""
        return self.results[(self.results["status"] == table.OK) & self.results["tensor"].notna()]

    @property
    def planned(self) -> int | None:
        """How many cases the run set out to measure; None where run.json does not say."""
        planned = self.record.get("planned")
        return planned if isinstance(planned, int) and not isinstance(planned, bool) else None

    @property
    def missing_cases(self) -> int:
        """Planned cases without a row."""
        return max(0, (self.planned or 0) - len(self.cases))


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


def read_folder(folder: Path, results: pd.DataFrame | None = None) -> Run:
    """results: as `table.read_results` gives them, where they are known. Raises NoReport where there is no table to
    report on."""
    advice = "expected a run folder with results/ or results.parquet; give the output_dir of an `accuracy` run"
    if not folder.is_dir():
        raise NoReport(f"{folder}: no such folder; {advice}")
    try:
        if storage.is_damaged(folder):
            raise NoReport(
                f"{folder}/{storage.SUMS} does not fit its files: one is damaged; restore or publish them again"
            )
        results = table.read_results(folder) if results is None else results
        positions, steps, hypotheses = (table.read_side(folder, name) for name in ("positions", "steps", "hypotheses"))
    except (OSError, pa.ArrowException) as error:
        raise NoReport(f"{folder}: its table cannot be read ({_one_line(error)}); {advice}") from error
    results = in_blocks(results[results["case_id"].notna()])
    results["rank"] = results["rank"].fillna(table.ALL_RANKS).astype("int64")
    if results.empty:
        raise NoReport(f"{folder}: holds no results; {advice}")
    results = results.sort_values(["case_id", "tensor", "rank"], kind="stable", ignore_index=True)
    return Run(results, positions, steps, hypotheses, *_read_record(folder))


def _read_record(folder: Path) -> tuple[dict[str, Any], str | None]:
    """run.json, empty where it cannot be read, and then why."""
    try:
        record = table.read_run(folder)
    except FileNotFoundError:
        return {}, "run.json is missing: the command, the configuration and the environment are not known"
    except (OSError, ConfigError, json.JSONDecodeError, UnicodeDecodeError) as error:
        return {}, f"run.json cannot be read ({_one_line(error)})"
    return (record, None) if isinstance(record, dict) else ({}, "run.json does not hold an object")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def write_sweep(folder: Path, words: Sequence[str], jobs: Sequence[Path]) -> None:
    """Say of a folder that it is a sweep's. words: of its command; jobs: the folders of its runs."""
    write_json(folder / SWEEP, {"argv": list(words), "jobs": [str(job.resolve()) for job in jobs]})


def joined(runs: Sequence[Run], words: list[str]) -> Run:
    """Tables below each other; a case that two jobs have, once."""
    kinds = ("results", "positions", "steps", "hypotheses")
    tables: dict[str, list[pd.DataFrame]] = {kind: [] for kind in kinds}
    seen: set[str] = set()
    for run in runs:
        mine = {*run.cases["case_id"]}
        for kind in kinds:
            rows = getattr(run, kind)
            tables[kind].append(rows[~rows["case_id"].isin(seen)])
        seen |= mine
    full = {kind: [frame for frame in frames if len(frame)] or frames[:1] for kind, frames in tables.items()}
    whole = {kind: pd.concat(frames, ignore_index=True) for kind, frames in full.items()}
    return Run(**whole, record=_record([run.record for run in runs], words), problem=runs[0].problem)


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


@dataclass(frozen=True)
class Material:
    """labelled: the rows of attention alone, each with its series and facet; measured: those with numbers, with the
    variant's name in the column `named`. verdicts: of all cells; cells: of what was measured, with `named`; found: the
    facts of each variant, gravest first."""

    run: Run
    claims: list[Claim]
    labelled: pd.DataFrame
    measured: pd.DataFrame
    verdicts: pd.DataFrame
    cells: pd.DataFrame
    found: list[Facts]

    @property
    def whole(self) -> pd.DataFrame:
        """The measured rows over all ranks."""
        return self.measured[self.measured["rank"] == ALL_RANKS]


def material_of(run: Run) -> Material:
    """Labelled and judged."""
    names = names_of(run.results)
    labelled = in_blocks(series.in_reading_order(series.with_labels(with_names(run.results, names))))
    measured = labelled[labelled["case_id"].isin(run.measured["case_id"]) & labelled["tensor"].notna()]
    judged = verdicts(run.results)
    cells = with_names(judged[judged["label"] != NOT_MEASURED], names)
    found = [] if cells.empty else diagnoses(cells.drop(columns="named"), run.results, run.steps, run.hypotheses)
    found = furthest_first(found, measured)
    claims = [] if run.is_of_a_user else judge(run.experiment, run.results, judged)
    return Material(run, claims, labelled.drop(columns="named"), measured, judged, cells, found)
