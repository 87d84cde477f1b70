from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from torch.fx.experimental import symbolic_shapes

from accuracy.api import recorder
from accuracy.cli.accept import accept
from accuracy.core.paths import PACKAGE
from accuracy.gate import decision
from accuracy.report import build
from accuracy.results.run_table import read_run
from accuracy.world import processes

LOADED = build, decision, processes, recorder, symbolic_shapes
"""A pytest in pytest forgets what it was the first to import."""
SUITE = """
from torch.nn.functional import scaled_dot_product_attention

SIZES = {"seqlen": 64, "heads": 2, "heads_kv": 2, "head_dim": 16, "world_size": 1}
SMALL = SIZES | {"dtype": "bfloat16", "seeds": [0, 1, 2]}


def attention(q, k, v, *, causal, softmax_scale, group):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale).transpose(1, 2)


def test_it_keeps_its_accuracy(accuracy_gate):
    rows = accuracy_gate(attention, **SMALL)
    assert set(rows["seed"]) == {0, 1, 2}


def test_of_something_else():
    pass
"""
WORSE = SUITE.replace(  # a tenth more, and a bit: the forward's output rounded to 8 bits once more
    ".transpose(1, 2)\n\n\ndef test_it", ".transpose(1, 2) * 1.02\n\n\ndef test_it"
)
Suite = Callable[..., str]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """suite(SOURCE, *words) -> what pytest says of it, in a folder of its own; apart: in a process of its own, too."""
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))
    installed = entry_points(group="pytest11", name="accuracy")  # pytest finds it there by itself; no bare checkout
    usual = ["-q", *([] if installed else ["-p", "accuracy.api.pytest_plugin"])]
    usual += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]

    def said(source: str, *words: str, apart: bool = False) -> str:
        pytester.makepyfile(test_suite=source)
        done = (pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess)(*usual, *words)
        return str(done.stdout) + str(done.stderr)

    return said


def test_a_record_is_a_run_and_against_a_baseline_made_of_it_only_a_worse_function_fails(
    suite: Suite, tmp_path: Path
) -> None:
    assert "2 passed" in suite(SUITE, f"--accuracy-record={tmp_path / 'run'}")
    run = read_run(tmp_path / "run")
    assert (len(run.planned), set(run.results["variant"])) == (3, {"attention"})
    assert (bool(run.about["ended"]), run.faults) == (True, ())
    baseline = f"--accuracy-baseline={accept(tmp_path / 'run', '', tmp_path / 'baseline')}"
    said = suite(SUITE, baseline)
    assert ("2 passed" in said, "not comparable" in said) == (True, False)
    said = suite(WORSE, baseline)
    assert "1 failed, 1 passed" in said, said
    assert "attention bfloat16 W=1 out" in said
    assert ("accuracy.diagnose(attention)" in said, "given:" in said) == (True, False)  # no command has the function
    assert "Traceback" not in said
    said = suite(SUITE.replace('"dtype": "bfloat16"', '"dtype": "float16"'), baseline)
    assert "cells of the baseline were measured by no test of this session" in said
    assert "2 passed" in said


def test_a_suite_that_measures_nothing_does_not_import_torch(suite: Suite, pytester: pytest.Pytester) -> None:
    source = "import sys\n\n\ndef test_fast():\n    assert 'torch' not in sys.modules\n"
    assert "1 passed" in suite(source, "--accuracy-record=run", apart=True)
    assert not (pytester.path / "run").exists()


def test_a_baseline_that_is_no_folder_and_a_record_by_several_workers_are_refused(suite: Suite) -> None:
    said = suite(SUITE, "--accuracy-baseline=nowhere", apart=True)
    assert "ERROR: --accuracy-baseline=nowhere is no folder" in said
    assert "passed" not in said
    pytest.importorskip("xdist")
    assert "--accuracy-record writes one run from one process" in suite(
        SUITE, "--accuracy-record=run", "-n2", apart=True
    )
