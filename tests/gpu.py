"""`make test-gpu`: every public entry on CUDA tensors, then as many of the other GPU tests as fit into its time.

    python -m tests.gpu [SECONDS]

It needs torch with a CUDA device, and pytest; where pytest-xdist is installed, four tests at a time share the device.
A test file that needs a package which is not installed is skipped, and so is a test for which no time is left; both
are named at the end. Exit status: pytest's, and 1 without a CUDA device. This file is the plugin of that run, too.
"""

import os
import re
import sys
import time
from collections import Counter
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

SECONDS = 445.0
AT_A_TIME = 4
UNTIL = "ACCURACY_TEST_GPU_UNTIL"  # an environment variable, which xdist's processes inherit
LATE = "no time left"
FIRST = "tests/unit/api/test_entries.py"
MISSING = re.compile(r"No module named '([\w.]+)'")

late: Counter[str] = Counter()
lacking: dict[str, str] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """A file whose import fails for a package that is not here is no failure."""
    outcome = yield
    report = outcome.get_result()
    found = MISSING.search(str(report.longrepr)) if report.failed else None
    if found and found[1].partition(".")[0] not in ("accuracy", "bench", "experiments", "tests"):
        report.outcome, report.longrepr = "skipped", (collector.nodeid, 0, f"Skipped: needs {found[1]}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    found = re.search(r"Skipped: needs ([\w.]+)", str(report.longrepr)) if report.skipped else None
    if found:
        lacking[report.nodeid] = found[1]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The entries first; then the files take turns, so that a slow one does not take all the time."""
    first = [each for each in items if each.nodeid.startswith(FIRST)]
    files: dict[str, list[pytest.Item]] = {}
    for each in items:
        if not each.nodeid.startswith(FIRST):
            files.setdefault(each.nodeid.partition("::")[0], []).append(each)
    items[:] = first + [each for turn in zip_longest(*files.values()) for each in turn if each is not None]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > float(os.environ[UNTIL]):
        pytest.skip(LATE)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and LATE in str(report.longrepr):
        late[report.nodeid.partition("::")[0]] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for file, package in lacking.items():
        terminalreporter.write_line(f"not run: {file} needs {package}, which is not installed")
    for file, number in late.items():
        terminalreporter.write_line(f"not run: {number} tests of {file}, no time was left")


def main(seconds: float = SECONDS) -> int:
    import torch

    if not torch.cuda.is_available():
        print("make test-gpu needs a CUDA device, and torch sees none", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    os.environ[UNTIL] = str(time.time() + seconds)
    files = sorted(str(path) for path in Path("tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    words = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-p", "tests.gpu", "--continue-on-collection-errors"]
    words += ["--durations=15", "-rs", *files]
    if find_spec("xdist"):
        words += ["-n", str(AT_A_TIME), "--dist", "loadgroup", "--no-loadscope-reorder"]
    if not entry_points(group="pytest11", name="accuracy"):  # a bare checkout
        words += ["-p", "accuracy.api.pytest_plugin"]
    return int(pytest.main(words))


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
