"""A user edits what his function depends on: the same command measures again, and says how much."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from accuracy.core.paths import PACKAGE
from accuracy.results import table
from tests.command_line import CommandLine, finish, start

RING = """
from torch.nn.functional import scaled_dot_product_attention
from .scaling import FACTOR

def my_attention(q, k, v, *, causal, softmax_scale, group):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return FACTOR * out.transpose(1, 2)
"""
WORDS = ("variant=callable", "variant.fn=my_package.my_attention", "world=processes", "world_size=1", "report=false",
         "dtype=[float32,float64]", "problem.seqlen=32", "problem.head_dim=8", "output_dir=run")  # fmt: skip


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_after_an_edit_the_same_command_measures_again_and_one_table_has_one_code(
    tmp_path: Path, accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .ring import my_attention\n")
    (package / "ring.py").write_text(RING)
    (package / "scaling.py").write_text("FACTOR = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "my_package")
    git(tmp_path, "commit", "-qm", "one")
    variables = {"PYTHONPATH": f"{PACKAGE.parent}:{tmp_path}"}

    def run() -> tuple[str, dict]:
        done = finish(start(tmp_path, *WORDS, **variables))
        assert done.status == 0, done.err
        functions = json.loads((tmp_path / "run" / "run.json").read_text())["provenance"]["functions"]
        return done.out + done.err, functions["my_package.my_attention"]

    said, about = run()
    commit = git(tmp_path, "rev-parse", "HEAD")
    (repository,) = about["repositories"]
    assert (repository["git_commit"], repository["dirty"], repository["files"]) == (commit, False, 3)
    rows = len(table.read_results(tmp_path / "run"))
    with monkeypatch.context() as here:  # nothing to measure, so no process is needed
        here.syspath_prepend(str(tmp_path))
        assert "2 found done" in accuracy(*WORDS).out
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
    (package / "scaling.py").write_text("FACTOR = 4\n")
    said, about = run()
    assert f"{rows} rows of other code are measured again" in said
    assert about["repositories"][0]["dirty"]
    found = table.read_results(tmp_path / "run")
    assert (len(found), found["code"].nunique()) == (rows, 1)
    assert found.loc[found["tensor"] == "out", "error_rel"].round(3).eq(3.0).all()
    kept = tmp_path / "run" / "other_code"
    assert len(list(kept.glob("*/results/*.parquet"))) == 2
