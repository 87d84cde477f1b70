import json
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from accuracy import cli as command
from accuracy.cli import plan_text
from accuracy.execute.run import folder_of
from accuracy.execute.settle import read_settled
from accuracy.measurement import provenance
from accuracy.results import storage, table
from tests.command_line import SHORT, CommandLine
from tests.measuring import composed


@pytest.mark.parametrize("key", ["code", "device", "torch", "knobs"])
def test_a_folder_of_another_setting_is_refused(accuracy: CommandLine, key: str) -> None:
    assert accuracy(*SHORT, "output_dir=run").status == 0
    path = accuracy.folder / "run" / "run.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"fingerprint": about["fingerprint"] | {key: "another"}}))
    before = path.read_bytes()
    answer = accuracy(*SHORT, "output_dir=run", "seed=1")
    assert answer.status == command.USAGE_ERROR
    assert answer.err.startswith(f"accuracy: output_dir=run holds rows of another setting ({key} was another, is ")
    assert answer.err.count("\n") == 1
    assert path.read_bytes() == before
    assert len(list(accuracy.folder.glob("run/results/*"))) == 1


def test_a_folder_takes_other_cases_of_the_same_setting(accuracy: CommandLine) -> None:
    accuracy(*SHORT, "output_dir=run")
    assert "1 measured, 0 unsupported, 0 failed, 1 found done" in accuracy(*SHORT, "output_dir=run", "seed=[0,1]").out
    assert set(table.read_results(accuracy.folder / "run")["seed"]) == {0, 1}


def test_run_json_holds_what_a_reader_needs(accuracy: CommandLine) -> None:
    accuracy(*SHORT, "output_dir=run", "name=mine")
    about = json.loads((accuracy.folder / "run" / "run.json").read_text())
    assert about["schema_version"] == table.SCHEMA_VERSION
    assert about["experiment"] == "mine"
    assert about["command"].startswith("accuracy problem.seqlen=32 ")
    assert about["config"]["problem"]["seqlen"] == 32
    assert about["planned"] == 1
    assert about["started"] <= about["ended"]
    assert about["cases"] == list(storage.finished_cases(storage.read_files(accuracy.folder / "run")))
    assert about["provenance"]["packages"]["torch"]


def folder_for(*words: str) -> Path:
    config = composed(*words)
    return folder_of(read_settled(config), config)


@pytest.mark.parametrize(
    "knob", ["report=false", "dry_run=true", "reference.folder=null", "reference.min_seconds=5", "workers=2"]
)
def test_a_knob_that_leaves_the_numbers_alone_leaves_the_default_folder_alone(knob: str) -> None:
    assert folder_for(knob) == folder_for()


@pytest.mark.parametrize(
    "knob",
    ["variant=ring", "kernel=eager", "precision.merge=double", "inputs=outliers", "inputs.gaussian.std=2",
     "problem=issue42", "problem.seqlen=64", "problem.mask=full", "problem.softmax_scale=1", "dtype=float32",
     "world_size=2", "seed=1", "name=other"],
)  # fmt: skip
def test_a_knob_that_changes_numbers_changes_the_default_folder(knob: str) -> None:
    assert folder_for(knob) != folder_for()


def test_the_same_command_finds_its_default_folder_again() -> None:
    first = folder_for("seed=3")
    composed.cache_clear()
    assert folder_for("seed=3") == first


def test_the_default_folder_is_named_after_the_experiment_and_a_given_one_is_taken() -> None:
    assert folder_for("name=mine").parent == Path("outputs")
    assert folder_for("name=mine").name.startswith("mine-")
    assert folder_for("output_dir=here") == Path("here")


def test_other_code_gets_another_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    before = folder_for()
    monkeypatch.setattr(provenance, "code_digest", lambda: "another")
    assert folder_for() != before


def test_the_terminal_shows_a_plan_and_ends_with_a_table(accuracy: CommandLine) -> None:
    answer = accuracy(*SHORT, "variant=[single_device,ring]", "world_size=[1,2]", "output_dir=run")
    assert "4 cases on cpu, 1 of them unsupported" in answer.err
    assert "error / single device's error" in answer.out
    assert answer.out.rstrip().endswith("3 measured, 1 unsupported, 0 failed")


def test_a_dry_run_prints_the_plan_and_writes_nothing(accuracy: CommandLine) -> None:
    answer = accuracy(*SHORT, "variant=[single_device,ring]", "world_size=[1,2]", "dry_run=true")
    assert answer.status == 0
    assert "4 cases planned, 3 to measure, 1 unsupported" in answer.out
    assert "unsupported: 1 x single_device runs on one device" in answer.out
    assert "memory: about " in answer.out
    assert list(accuracy.folder.iterdir()) == []


def test_a_run_reads_each_case_s_file_once(accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were there before it measures, of its own when it closes the plan; the summary reads all."""
    words = (*SHORT, "output_dir=run", "seed=[0,1]")
    assert accuracy(*words).status == 0
    read: list[str] = []
    file, dataset = pq.ParquetFile, ds.dataset
    monkeypatch.setattr(pq, "ParquetFile", lambda path, **how: read.append(path.stem) or file(path, **how))
    monkeypatch.setattr(ds, "dataset", lambda paths, **how: read.extend(p.stem for p in paths) or dataset(paths, **how))
    monkeypatch.setattr(plan_text, "outcome", lambda outcome: "")
    assert accuracy(*words[:-1], "seed=[0,1,2]").status == 0
    assert len(read) == 3
    assert {*read} == {path.stem for path in (accuracy.folder / "run" / "results").iterdir()}


@pytest.mark.parametrize(
    ("text", "version"),
    [("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54  Tue Jun  6\nGCC version:  gcc 11.4.0\n", "535.54"),
     ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", "580.95.05")],
)  # fmt: skip
def test_the_driver_is_the_one_that_the_kernel_names(
    text: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text(text)
    assert provenance._driver() == version
