"""What is in the folder of a run? Reads tables and `run.json`, also of a run killed midway.

Only results are required. Everything else may be missing, and the report says what is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from accuracy.core.errors import ConfigError, printable
from accuracy.report import series
from accuracy.report.worst import furthest_first
from accuracy.results import completeness, storage, table
from accuracy.results.table import ALL_RANKS
from accuracy.verdict.diagnosis import diagnoses
from accuracy.verdict.facts import Facts
from accuracy.verdict.label import NOT_MEASURED
from accuracy.verdict.rows import in_blocks, names_of, with_names
from accuracy.verdict.verdict import verdicts

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
    problem: str = ""  # what is wrong with run.json, or with rows that the run ended with

    @property
    def experiment(self) -> str:
        """Name of the experiment, "adhoc" where none was chosen."""
        return str(self.record.get("experiment") or "adhoc")

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


def read_folder(folder: Path, results: pd.DataFrame | None = None) -> Run:
    """results: as `table.read_results` gives them, where they are known. Raises NoReport where there is no table to
    report on."""
    advice = "expected a run folder with results/ or results.parquet; give the output_dir of an `accuracy` run"
    if not folder.is_dir():
        raise NoReport(f"{folder}: no such folder; {advice}")
    try:
        if storage.is_damaged(folder):
            raise NoReport(
                f"{folder}/{storage.SUMS} does not fit its files: one is damaged; restore them or accept a run again"
            )
        known = results is not None
        results = whole = table.read_results(folder) if results is None else results
        positions, steps, hypotheses = (table.read_side(folder, name) for name in ("positions", "steps", "hypotheses"))
    except OSError as error:
        raise NoReport(f"{folder}: its table cannot be read ({error.strerror}); {advice}") from error
    results = in_blocks(results[results["case_id"].notna()])
    results["rank"] = results["rank"].fillna(table.ALL_RANKS).astype("int64")
    if results.empty:
        raise NoReport(f"{folder}: holds no results; {advice}")
    results = results.sort_values(["case_id", "tensor", "rank"], kind="stable", ignore_index=True)
    record, problem = {}, ""
    try:
        record = table.read_run(folder)
    except ConfigError as error:
        problem = printable(str(error))
    if not known and {"plan", "ended"} <= {*record} and not (folder / storage.SUMS).exists():  # nor were its digits cut
        problem = "; ".join(f"{each.name} {each.text}" for each in completeness.faults(record, whole))
    return Run(results, positions, steps, hypotheses, record, problem)


@dataclass(frozen=True)
class Material:
    """labelled: the rows of attention alone, each with its series and facet; measured: those with numbers, with the
    variant's name in the column `named`. verdicts: of all cells; cells: of what was measured, with `named`; found: the
    facts of each variant, gravest first."""

    run: Run
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
    return Material(run, labelled.drop(columns="named"), measured, judged, cells, found)
