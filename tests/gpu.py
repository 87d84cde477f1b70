"""`make test-gpu`: every public entry on CUDA tensors, then as many of the other GPU tests as fit into its time.

    python -m tests.gpu [SECONDS]

It needs torch with a CUDA device, and pytest. A test file that needs a package which is not installed is skipped, and
so is a test for which no time is left; both are named at the end. Exit status: pytest's, and 1 without a CUDA device.
"""

import re
import sys
import time
from collections import Counter
from importlib.metadata import entry_points
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

SECONDS = 445.0
FIRST = "tests/unit/api/test_entries.py"
MISSING = re.compile(r"No module named '([\w.]+)'")


class WithinTime:
    """A plugin that takes one test of each file in turn, and none that would begin after the time is over."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.late: Counter[str] = Counter()
        self.lacking: dict[str, str] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """A file whose import fails for a package that is not here is no failure."""
        outcome = yield
        report = outcome.get_result()
        found = MISSING.search(str(report.longrepr)) if report.failed else None
        if found and found[1].partition(".")[0] not in ("accuracy", "bench", "experiments", "tests"):
            self.lacking[collector.nodeid] = found[1]
            report.outcome, report.longrepr = "skipped", (collector.nodeid, 0, f"Skipped: needs {found[1]}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The entries first; then the files take turns, so that a slow one does not take all the time."""
        first = [each for each in items if each.nodeid.startswith(FIRST)]
        files: dict[str, list[pytest.Item]] = {}
        for each in items:
            if not each.nodeid.startswith(FIRST):
                files.setdefault(each.nodeid.partition("::")[0], []).append(each)
        items[:] = first + [each for turn in zip_longest(*files.values()) for each in turn if each is not None]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() > self.deadline:
            self.late[item.nodeid.partition("::")[0]] += 1
            pytest.skip("no time left")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for file, package in self.lacking.items():
            terminalreporter.write_line(f"not run: {file} needs {package}, which is not installed")
        for file, number in self.late.items():
            terminalreporter.write_line(f"not run: {number} tests of {file}, no time was left")


def main(seconds: float = SECONDS) -> int:
    import torch

    if not torch.cuda.is_available():
        print("make test-gpu needs a CUDA device, and torch sees none", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    files = sorted(str(path) for path in Path("tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    words = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--durations=15", *files]
    if not entry_points(group="pytest11", name="accuracy"):  # a bare checkout
        words += ["-p", "accuracy.api.pytest_plugin"]
    return int(pytest.main(words, plugins=[WithinTime(seconds)]))


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
