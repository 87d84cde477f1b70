"""One baseline for all tests, and the command called in this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from accuracy.cli import check
from tests.command_line import Answer
from tests.unit.gate.made_up import MadeUp, write_baseline, write_run

Gate = Callable[..., Answer]


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight seeds of three variants: 2 world sizes, 6 tensors."""
    return write_baseline(tmp_path_factory.mktemp("reports") / "made_up" / "some-gpu")


@pytest.fixture
def gate(tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]) -> Gate:
    """gate(MadeUp(...), "--more") -> Answer: the run written and checked against the baseline."""

    def answer(made: MadeUp | Path, *words: str, against: Path | None = baseline) -> Answer:
        run = made if isinstance(made, Path) else write_run(tmp_path / "run", made)
        capsys.readouterr()
        status = check.main([str(run), *(["--baseline", str(against)] if against else []), *words])
        return Answer(int(status), *capsys.readouterr())

    return answer
