import subprocess
import sys
from pathlib import Path

import pytest

from accuracy.core.paths import PACKAGE
from tests.processes import python

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from accuracy.cli.run import main; main()"
"""Any `import torch` raises ImportError."""


@pytest.mark.parametrize(
    ("before", "word", "status", "told"),
    [
        ("import sys; sys.modules['hydra'] = None; ", "--help", 0, "usage: accuracy"),
        ("", "+problem.seqlens=2", 2, "did you mean seqlen?"),
    ],
)
def test_help_and_a_refused_value_answer_without_torch_and_help_without_hydra(
    tmp_path: Path, before: str, word: str, status: int, told: str
) -> None:
    given = python("-c", before + WITHOUT_TORCH, word, folder=tmp_path)
    assert (given.returncode, told in given.stdout + given.stderr) == (status, True), given.stderr


def test_the_help_may_be_read_in_part() -> None:
    command = f"{sys.executable} -m accuracy --help | head -1"
    done = subprocess.run(command, shell=True, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""


def test_what_the_first_case_waits_for_imports_no_pandas_no_scipy_and_no_matplotlib(tmp_path: Path) -> None:
    late = "pandas", "scipy", "matplotlib", "jinja2", "torch.distributed.elastic.agent"
    needed = "accuracy.cli.job, accuracy.execute.run, accuracy.execute.ranks.rank_loop"
    given = python("-c", f"import sys, {needed}; print(sorted(sys.modules.keys() & {late!r}))", folder=tmp_path)
    assert given.stdout == "[]\n", given.stderr
