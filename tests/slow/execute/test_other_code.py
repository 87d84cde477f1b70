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
    accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = accuracy.folder
    package = folder / "edited_package"
    package.mkdir()
    for name, text in {"__init__": "from .ring import my_attention\n", "ring": RING, "scaling": "FACTOR = 1\n"}.items():
        (package / f"{name}.py").write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", "edited_package")
    git(folder, "commit", "-qm", "one")
    monkeypatch.syspath_prepend(str(folder))

    def told(done: Answer) -> tuple[str, dict]:
        assert done.status == 0, done.err
        functions = json.loads((folder / "run" / "run.json").read_text())["provenance"]["functions"]
        return done.out + done.err, functions["edited_package.my_attention"]["repositories"][0]

    _, about = told(accuracy(*WORDS))
    assert (about["git_commit"], about["dirty"], about["files"]) == (git(folder, "rev-parse", "HEAD"), False, 3)
    rows = len(table.read_results(folder / "run"))
    assert "2 found done" in told(accuracy(*WORDS))[0]
    (package / "scaling.py").write_text("FACTOR = 4\n")
    said, about = told(finish(start(folder, *WORDS, PYTHONPATH=f"{PACKAGE.parent}:{folder}")))
    assert f"{rows} rows of other code are measured again" in said
    assert about["dirty"]
    found = table.read_results(folder / "run")
    assert (len(found), found["code"].nunique()) == (rows, 1)
    assert found.loc[found["tensor"] == "out", "error_rel"].round(3).eq(3.0).all()
    assert len(list(folder.glob("run/other_code/*/results/*.parquet"))) == 2
