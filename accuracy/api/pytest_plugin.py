"""pytest plugin: a project's own tests record what they measure, to be compared with a baseline.

    def test_my_attention_keeps_its_accuracy(accuracy_gate):
        accuracy_gate(my_attention, sharding="zigzag", seeds=range(8))

`pytest --accuracy-record=FOLDER` writes a run folder (accuracy check reads it, accuracy accept publishes it);
`pytest --accuracy-baseline=FOLDER` fails a test whose cells got worse. torch is imported by the first measurement.
"""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from accuracy.core.errors import ConfigError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from accuracy.gate.rules import Limits

RECORDER = pytest.StashKey[Any]()  # there once something was measured


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--accuracy-baseline` and `--accuracy-record`."""
    add = parser.getgroup("accuracy", "numerical accuracy of attention").addoption
    add("--accuracy-baseline", type=Path, metavar="FOLDER", help="fail where accuracy_gate finds a cell worse")
    add("--accuracy-record", type=Path, metavar="FOLDER", help="write what accuracy_gate measures, as a run")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse mistakes in the words before anything is measured: several workers would each write a run.json of their
    own tests."""
    baseline = config.getoption("--accuracy-baseline")
    if baseline and not baseline.is_dir():
        raise pytest.UsageError(
            f"--accuracy-baseline={baseline} is no folder; without a baseline leave it out, and make one of"
            " --accuracy-record=RUN with accuracy accept RUN --to FOLDER"
        )
    several = hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"
    if config.getoption("--accuracy-record") and several:
        raise pytest.UsageError("--accuracy-record writes one run from one process; give no -n, or -n 0")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Close the record of a run."""
    if RECORDER in session.config.stash and session.exitstatus != pytest.ExitCode.INTERRUPTED:
        from accuracy.execute.run import now

        session.config.stash[RECORDER].write(ended=now())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what a reader must know of the baseline."""
    for note in config.stash[RECORDER].summary() if RECORDER in config.stash else ():
        terminalreporter.write_line(f"accuracy: {note}")


@pytest.fixture
def accuracy_gate(request: pytest.FixtureRequest) -> Callable[..., "pd.DataFrame"]:
    """Return measure(fn, *, seeds=range(8), limits=..., **how) -> rows; how: as `accuracy.assert_accurate` has it.

    It fails the test with the worst cells where the portable rules, or the baseline, say so.
    """

    def measure(
        fn: Callable[..., Any], *, seeds: Iterable[int] = range(8), limits: "Limits | None" = None, **how: Any
    ) -> "pd.DataFrame":
        __tracebackhide__ = True
        from accuracy.api import assert_accurate as accurate
        from accuracy.api.recorder import Recorder

        asked, stash = request.config.getoption, request.config.stash
        recorder = stash.setdefault(RECORDER, Recorder(asked("--accuracy-baseline"), asked("--accuracy-record")))
        for name in how:
            if name not in accurate.KEYWORDS:
                raise unknown("argument of accuracy_gate", name, [*accurate.KEYWORDS, "seeds", "limits"])
        accurate.check_limits(limits)
        results = accurate.results_of(fn, seed=seeds, **how)
        short = accurate.may_have_short_sums(results, limits or accurate.LIMITS)
        if short and (again := accurate.of_torch_s_own(fn, seed=seeds, **how)) is not None:
            results = again
            warnings.warn(accurate.SHORT_SUMS_SAID, stacklevel=2)
        rows = accurate.rows_in(results)
        recorder.add(rows)
        try:
            complaint = accurate.not_measured(results) or recorder.judge(rows, limits)
        except ConfigError as error:
            complaint = str(error)
        if complaint is not None:
            pytest.fail(complaint, pytrace=False)
        return results

    return measure
