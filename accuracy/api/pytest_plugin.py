"""pytest plugin: a project's own tests record what they measure, to be compared with a baseline.

    def test_my_attention_keeps_its_accuracy(accuracy_gate):
        accuracy_gate(my_attention, sharding="zigzag", seeds=range(8))

`pytest --accuracy-record=FOLDER` writes a run folder (accuracy-check reads it, accuracy-check update publishes it);
`pytest --accuracy-baseline=FOLDER` fails a test whose cells got worse. torch is imported by the first measurement.
"""

import datetime
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from accuracy.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from accuracy.gate.rules import Limits
    from accuracy.results.cell import Key
    from accuracy.results.run_table import RunTable

EXPERIMENT = "pytest"
RECORDER = pytest.StashKey["Recorder"]()
Rows = Sequence[Mapping[str, Any]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--accuracy-baseline` and `--accuracy-record`."""
    group = parser.getgroup("accuracy", "numerical accuracy of attention")
    group.addoption(
        "--accuracy-baseline", type=Path, metavar="FOLDER", help="fail where accuracy_gate finds a cell worse"
    )
    group.addoption(
        "--accuracy-record", type=Path, metavar="FOLDER", help="write what accuracy_gate measures, as a run"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is read before a test asks for it. Several workers would each write a run.json of their own tests."""
    if config.getoption("--accuracy-record") and (
        hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"
    ):
        raise pytest.UsageError("--accuracy-record writes one run from one process; give no -n, or -n 0")
    config.stash[RECORDER] = Recorder(config.getoption("--accuracy-baseline"), config.getoption("--accuracy-record"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The record of a run is closed."""
    session.config.stash[RECORDER].close(interrupted=session.exitstatus == pytest.ExitCode.INTERRUPTED)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What a reader must know of the baseline."""
    recorder = config.stash[RECORDER]
    for note in dict.fromkeys([*recorder.notes, *recorder.left_out()]):
        terminalreporter.write_line(f"accuracy: {note}")


@pytest.fixture
def accuracy_gate(request: pytest.FixtureRequest) -> Callable[..., "pd.DataFrame"]:
    """measure(fn, *, seeds=range(8), limits=..., **how) -> rows; how: as `accuracy.assert_accurate` has it.

    Fails the test with the worst cells where the portable rules, or the baseline, say so.
    """
    recorder = request.config.stash[RECORDER]

    def measure(
        fn: Callable[..., Any], *, seeds: Iterable[int] = range(8), limits: "Limits | None" = None, **how: Any
    ) -> "pd.DataFrame":
        __tracebackhide__ = True
        import pandas as pd

        from accuracy.api.assert_accurate import rows_of

        rows = rows_of(fn, seed=seeds, **how)
        recorder.add(rows)
        try:
            complaint = recorder.judge(rows, limits)
        except ConfigError as error:
            complaint = str(error)
        if complaint is not None:
            pytest.fail(complaint, pytrace=False)
        return pd.DataFrame(rows)

    return measure


class Recorder:
    """The session's rows: written as they come, judged test by test."""

    def __init__(self, baseline: Path | None, folder: Path | None) -> None:
        self.baseline, self.folder = baseline, folder
        self.notes: list[str] = []
        self.judged: set[Key] = set()
        self.expected: set[Key] = set()
        self.cases: list[str] = []
        self.started = _now()
        self._device = "cpu"

    def add(self, rows: Rows) -> None:
        """Keep the rows. Every rank has the same; the first writes them."""
        import torch

        from accuracy.results import table

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        cases = list(dict.fromkeys(row["case_id"] for row in rows))
        self.cases = list(dict.fromkeys([*self.cases, *cases]))
        if self.folder is None or os.environ.get("RANK", "0") != "0":
            return
        for case in cases:
            table.write_case(
                self.folder, case, [{**row, "experiment": EXPERIMENT} for row in rows if row["case_id"] == case]
            )
        table.write_json(self.folder / "run.json", self._about(self.cases, None))

    def close(self, interrupted: bool) -> None:
        """Note the end of a run that was not interrupted."""
        if self.folder is None or not self.cases or interrupted or os.environ.get("RANK", "0") != "0":
            return
        from accuracy.results import table

        table.write_json(self.folder / "run.json", self._about(self.cases, _now()))

    def judge(self, rows: Rows, limits: "Limits | None") -> str | None:
        """What is wrong with a test's rows, as accuracy-check prints it; None where nothing is."""
        from accuracy.gate import choice
        from accuracy.gate.decision import Question, decide
        from accuracy.gate.exits import Exit
        from accuracy.gate.rules import Limits
        from accuracy.gate.text import terminal
        from accuracy.gate.verdicts import verdicts
        from accuracy.results.cell import measured

        run = self._evidence(rows)
        baseline = choice.baseline(run, self.baseline) if self.baseline else None
        decision = decide(Question(run, baseline, part=True, limits=limits or Limits(), verdicts=verdicts(run)))
        if baseline is not None:
            self.notes += decision.notes
            self.judged |= {item.key for item in decision.items if item.key is not None}
            self.expected |= set() if decision.hard else set(measured(baseline))
        return None if decision.exit is Exit.OK else terminal(decision)

    def left_out(self) -> list[str]:
        """What the baseline has and no test of this session measured."""
        number = len(self.expected - self.judged)
        return [f"{number} cells of the baseline were measured by no test of this session"] if number else []

    def _evidence(self, rows: Rows) -> "RunTable":
        import json

        import pyarrow as pa

        from accuracy.results import table
        from accuracy.results.run_table import of_table

        cases = list(dict.fromkeys(row["case_id"] for row in rows))
        about = json.loads(json.dumps(self._about(cases, _now()), default=str))
        return of_table(self.folder or Path(EXPERIMENT), about, pa.Table.from_pylist(rows, schema=table.RESULTS_SCHEMA))

    def _about(self, cases: list[str], ended: str | None) -> dict[str, Any]:
        from accuracy.measurement.provenance import fingerprint, provenance
        from accuracy.results import table

        words = ["pytest", *sys.argv[1:]]
        return {
            "schema_version": table.SCHEMA_VERSION, "experiment": EXPERIMENT, "command": " ".join(words), "argv": words,
            "config": {}, "started": self.started, "ended": ended, "planned": len(cases), "cases": cases,
            "fingerprint": fingerprint(self._device), "provenance": provenance(self._device), "process": os.getpid(),
        }  # fmt: skip


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
