"""A user edits what his function depends on: the same command measures again, and says how much."""

import json
import subprocess
from pathlib import Path

import pytest

from accuracy.core.paths import PACKAGE
from accuracy.results import table
from tests.command_line import Answer, CommandLine, finish, start

RING = """
from torch.nn.functional import scaled_dot_product_attention
from .scaling import FACTOR

def my_attention(q, k, v, *, causal, softmax_scale, group):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return FACTOR * out.transpose(1, 2)
"""
WORDS = ("variant=callable", "variant.fn=edited_package.my_attention", "world=processes", "world_size=1",
         "report=false", "dtype=[float32,float64]", "problem.seqlen=32", "problem.head_dim=8",
         "output_dir=run")  # fmt: skip


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_after_an_edit_the_same_command_measures_again_and_one_table_has_one_code(
    tmp_path: Path, accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "edited_package"
    package.mkdir()
    (package / "__init__.py").write_text("from .ring import my_attention\n")
    (package / "ring.py").write_text(RING)
    (package / "scaling.py").write_text("FACTOR = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "edited_package")
    git(tmp_path, "commit", "-qm", "one")
    monkeypatch.syspath_prepend(str(tmp_path))

    def told(done: Answer) -> tuple[str, dict]:
        assert done.status == 0, done.err
        functions = json.loads((tmp_path / "run" / "run.json").read_text())["provenance"]["functions"]
        return done.out + done.err, functions["edited_package.my_attention"]

    _, about = told(accuracy(*WORDS))
    commit = git(tmp_path, "rev-parse", "HEAD")
    (repository,) = about["repositories"]
    assert (repository["git_commit"], repository["dirty"], repository["files"]) == (commit, False, 3)
    rows = len(table.read_results(tmp_path / "run"))
    assert "2 found done" in told(accuracy(*WORDS))[0]
    (package / "scaling.py").write_text("FACTOR = 4\n")
    said, about = told(finish(start(tmp_path, *WORDS, PYTHONPATH=f"{PACKAGE.parent}:{tmp_path}")))
    assert f"{rows} rows of other code are measured again" in said
    assert about["repositories"][0]["dirty"]
    found = table.read_results(tmp_path / "run")
    assert (len(found), found["code"].nunique()) == (rows, 1)
    assert found.loc[found["tensor"] == "out", "error_rel"].round(3).eq(3.0).all()
    kept = tmp_path / "run" / "other_code"
    assert len(list(kept.glob("*/results/*.parquet"))) == 2
