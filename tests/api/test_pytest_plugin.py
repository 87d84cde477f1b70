"""The pytest plugin in another project's suite: rows are recorded, a baseline is kept to, and nothing else happens."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from accuracy.cli import publish
from accuracy.results.run_table import read_run

pytestmark = pytest.mark.xdist_group("plugin")
ROOT = Path(__file__).parents[2]
SUITE = """
from torch.nn.functional import scaled_dot_product_attention

SMALL = {"seqlen": 64, "heads": 2, "heads_kv": 2, "head_dim": 16, "dtype": "bfloat16", "seeds": [0, 1, 2]}


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


def pytest_in(folder: Path, suite: str, *words: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "test_suite.py").write_text(suite)
    installed = entry_points(
        group="pytest11", name="accuracy"
    )  # pytest finds it there by itself; not in a bare checkout
    plugin = [] if installed else ["-p", "accuracy.api.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    assert "2 passed" in pytest_in(folder, SUITE, "--accuracy-record=run")
    return folder


@pytest.fixture(scope="module")
def baseline(recorded: Path) -> Path:
    return publish.publish(recorded / "run", recorded / "baseline")


def test_the_record_is_a_run_that_the_gate_reads(recorded: Path) -> None:
    run = read_run(recorded / "run")
    assert len(run.planned) == 3
    assert set(run.results["variant"]) == {"attention"}
    assert run.about["ended"]


def test_the_same_function_passes_against_its_baseline(baseline: Path, tmp_path: Path) -> None:
    said = pytest_in(tmp_path / "suite", SUITE, f"--accuracy-baseline={baseline}")
    assert "2 passed" in said
    assert "not comparable" not in said


def test_a_worse_function_fails_its_test_and_no_other_and_names_the_cell(baseline: Path, tmp_path: Path) -> None:
    said = pytest_in(tmp_path / "suite", WORSE, f"--accuracy-baseline={baseline}")
    assert "1 failed, 1 passed" in said, said
    assert "attention bfloat16 W=1 out" in said
    assert "Traceback" not in said


def test_a_baseline_that_cannot_be_read_fails_the_test_in_one_line(baseline: Path, tmp_path: Path) -> None:
    said = pytest_in(tmp_path / "suite", SUITE, "--accuracy-baseline=nowhere")
    assert "nowhere: no such folder" in said
    assert "1 failed, 1 passed" in said


def test_without_options_the_portable_rules_hold(tmp_path: Path) -> None:
    assert "2 passed" in pytest_in(tmp_path / "suite", SUITE)
    wrong = SUITE.replace("is_causal=causal", "is_causal=False")
    said = pytest_in(tmp_path / "suite", wrong)
    assert "1 failed, 1 passed" in said
    assert "times that of the kernel run once" in said or "logic" in said


def test_a_suite_that_measures_nothing_does_not_import_torch(tmp_path: Path) -> None:
    suite = "import sys\n\n\ndef test_fast():\n    assert 'torch' not in sys.modules\n"
    assert "1 passed" in pytest_in(tmp_path / "suite", suite, "--accuracy-record=run")
    assert not (tmp_path / "suite" / "run").exists()


def test_a_record_by_several_workers_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    said = pytest_in(tmp_path / "suite", SUITE, "--accuracy-record=run", "-n", "2")
    assert "--accuracy-record writes one run from one process" in said
    assert not (tmp_path / "suite" / "run").exists()


def test_cells_of_the_baseline_that_no_test_measured_are_counted(baseline: Path, tmp_path: Path) -> None:
    other = SUITE.replace('"dtype": "bfloat16"', '"dtype": "float16"')
    said = pytest_in(tmp_path / "suite", other, f"--accuracy-baseline={baseline}")
    assert "cells of the baseline were measured by no test of this session" in said
    assert "2 passed" in said
