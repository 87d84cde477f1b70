"""Options and skips for the whole suite. pytest-xdist's first process, which runs no test, does without torch."""

import gc
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import sampling

if TYPE_CHECKING:
    from tests.command_line import CommandLine
    from tests.real_ranks import RealRanks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--config-dir", type=Path, help="a folder with parts of your own, tested as ours are")
    parser.addoption("--stress", action="store_true", help="all tests on all parameters, not a seeded sample")


@pytest.hookimpl(trylast=True)  # the sample is of what -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    if not config.getoption("--stress"):
        spared = sampling.left_out(items)
        config.hook.pytest_deselected(items=list(spared))
        items[:] = [item for item in items if item not in spared]
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):  # not item.keywords: a folder may be called gpu
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """What is imported and collected stays to the end: the garbage collector need not go through it again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def stress(pytestconfig: pytest.Config) -> bool:
    """Whether everything is asked for, also of what one test goes through."""
    return bool(pytestconfig.getoption("--stress"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What all processes that ended took, xdist's workers and those that tests started."""
    terminalreporter.write_line(f"{sum(os.times()[:4]):.0f} CPU-seconds")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job and its children ignore it
    import torch

    gc.disable()
    sampling.whole = config.getoption("--stress")
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton: its kernels run as numpy
        if importlib.util.find_spec("triton") is not None:
            from accuracy.kernel.triton import available

            available.mend()  # the interpreter has no bfloat16
    torch.set_num_threads(1)  # the tests run in as many processes as there are processors


@pytest.fixture(autouse=True)
def _exact_arithmetic() -> None:
    from accuracy.runtime import arithmetic

    arithmetic.make_exact()


@pytest.fixture(scope="session")
def pool() -> "Iterator[RealRanks]":
    """Worlds of 1 to 4 real ranks over gloo; tests of xdist's group `packages` share it."""
    from tests.real_ranks import RealRanks

    ranks = RealRanks((1, 2, 3, 4), "gloo", timeout=600.0)
    yield ranks
    ranks.close()


@pytest.fixture
def accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "CommandLine":
    """The console command, in a folder of its own."""
    from tests.command_line import CommandLine

    return CommandLine(tmp_path, monkeypatch, capsys)


@pytest.fixture
def few_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 runs again of each of four seeds in a diagnosis, not the 230 that a race needs."""
    monkeypatch.setattr("accuracy.config.resolve.MOST_PAIRS_AGAIN", 2**18)


@pytest.fixture
def few_grids(monkeypatch: pytest.MonkeyPatch, few_runs_again: None, request: pytest.FixtureRequest) -> None:
    """A diagnosis of its main problem and of the grids that the test names, in no other shapes: those are for the tests
    of strangers' faults."""
    from tests.measuring import USUAL, only_grids

    monkeypatch.setattr("accuracy.config.resolve.with_given", only_grids(*USUAL, *getattr(request, "param", ())))
