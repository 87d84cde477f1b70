"""The rows that a pytest session measures: written as they come, judged test by test."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from accuracy.execute.run import now, record
from accuracy.gate import Exit
from accuracy.gate.decision import Question, decide, verdicts
from accuracy.gate.fingerprint import comparable_baseline
from accuracy.gate.output import terminal
from accuracy.gate.rules import Limits
from accuracy.results import completeness, storage, table
from accuracy.results.cell import Key, measured
from accuracy.results.completeness import Promise
from accuracy.results.derived import with_derived
from accuracy.results.run_table import of_table
from accuracy.runtime import device as devices

EXPERIMENT = "pytest"


class Recorder:
    """A session's rows, written to a folder by the first rank, as every rank has the same."""

    def __init__(self, baseline: Path | None, folder: Path | None) -> None:
        self.baseline, self.folder = baseline, folder if os.environ.get("RANK", "0") == "0" else None
        self.notes: list[str] = []
        self.judged: set[Key] = set()
        self.expected: set[Key] = set()
        self.rows: list[table.Row] = []
        self.started = now()

    def add(self, rows: Sequence[table.Row]) -> None:
        """Keep the rows."""
        own = [{**row, "experiment": EXPERIMENT} for row in rows]
        self.rows += own
        if self.folder is not None:
            for case in {row["case_id"] for row in own}:
                storage.write_case(self.folder, case, [row for row in own if row["case_id"] == case])
        self.write(ended=None)

    def write(self, ended: str | None) -> None:
        """Write run.json; ended: when, of a session that ended and was not interrupted."""
        if self.folder is not None:
            storage.write_json(self.folder / "run.json", self._about(self.rows, ended))

    def judge(self, rows: Sequence[table.Row], limits: Limits | None) -> str | None:
        """Return what is wrong with a test's rows, as accuracy check prints it; None where nothing is."""
        about = self._about(rows, now())
        content = pa.Table.from_pylist(rows, schema=table.RESULTS_SCHEMA)
        run = of_table(self.folder or Path(EXPERIMENT), json.loads(json.dumps(about, default=str)), content)
        baseline = comparable_baseline(run, self.baseline) if self.baseline else None
        decision = decide(Question(run, baseline, part=True, limits=limits or Limits(), verdicts=verdicts(run)))
        if baseline is not None:
            self.notes += decision.notes
            self.judged |= {item.key for item in decision.items if item.key is not None}
            self.expected |= set() if decision.hard else set(measured(baseline))
        return None if decision.exit is Exit.OK else terminal(decision)

    def summary(self) -> Iterable[str]:
        """Return what a reader must know of the baseline, and how much of it no test of this session measured."""
        number = len(self.expected - self.judged)
        left_out = [f"{number} cells of the baseline were measured by no test of this session"] if number else []
        return dict.fromkeys([*self.notes, *left_out])

    def _about(self, rows: Sequence[table.Row], ended: str | None) -> dict[str, Any]:
        promises = {row["case_id"]: Promise(row["seed"], row["world_size"], row["code"]) for row in rows}
        on_cpu = any(row["device"] == devices.name("cpu") for row in rows)
        device = "cpu" if on_cpu else devices.choose("auto")
        about = record(EXPERIMENT, device, {}, list(promises), ["pytest", *sys.argv[1:]])
        plan = completeness.new_plan(promises, about["fingerprint"]["device"])
        if ended is not None:
            table_of_rows = pa.Table.from_pylist([dict(row) for row in rows], schema=table.RESULTS_SCHEMA)
            plan = completeness.closed_plan(plan, with_derived(table_of_rows.to_pandas()))
        return about | {"started": self.started, "ended": ended, "process": os.getpid(), "plan": plan}
