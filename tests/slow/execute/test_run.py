import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy import cli as command
from accuracy.execute.run import folder_of
from accuracy.execute.settle import read_settled
from accuracy.measurement import provenance
from accuracy.results import storage, table
from tests.command_line import SHORT, TINY, CommandLine, finish, start
from tests.measuring import composed, numbers


def test_a_folder_of_another_setting_is_refused(accuracy: CommandLine) -> None:
    assert accuracy(*SHORT, "output_dir=run").status == 0
    path = accuracy.folder / "run" / "run.json"
    about = json.loads(path.read_text())
    for key in ("code", "device", "torch", "knobs"):
        path.write_text(json.dumps(about | {"fingerprint": about["fingerprint"] | {key: "another"}}))
        before = path.read_bytes()
        answer = accuracy(*SHORT, "output_dir=run", "seed=1")
        assert answer.status == command.USAGE_ERROR
        assert answer.err.startswith(f"accuracy: output_dir=run holds rows of another setting ({key} was another, is ")
        assert answer.err.count("\n") == 1
        assert path.read_bytes() == before
    assert len(list(accuracy.folder.glob("run/results/*"))) == 1


def folder_for(*words: str) -> Path:
    config = composed(*words)
    return folder_of(read_settled(config), config)


NO_NUMBERS = ("report=false", "dry_run=true", "workers=2")
NUMBERS = (
    "variant=ring", "kernel=eager", "precision.merge=double", "inputs=outliers", "inputs.gaussian.std=2",
    "problem=issue42", "problem.seqlen=64", "dtype=float32", "world_size=2", "seed=1", "name=other",
)  # fmt: skip


def test_the_default_folder_is_that_of_the_numbers_and_a_given_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command finds it again, whatever changes no number; other code has another one."""
    own = folder_for()
    assert {folder_for(knob) for knob in NO_NUMBERS} == {own}
    assert len({own, *(folder_for(knob) for knob in NUMBERS)}) == 1 + len(NUMBERS)
    mine = folder_for("name=mine")
    assert (mine.parent, mine.name[:5]) == (Path("outputs"), "mine-")
    assert folder_for("output_dir=here") == Path("here")
    monkeypatch.setattr(provenance, "code_digest", lambda: "another")
    assert folder_for() != own


def test_a_dry_run_prints_the_plan_and_writes_nothing_and_a_run_ends_with_a_table_and_says_what_it_was(
    accuracy: CommandLine,
) -> None:
    words = (*SHORT, "variant=[single_device,ring]", "world_size=[1,2]")
    answer = accuracy(*words, "dry_run=true")
    assert answer.status == 0
    assert "4 cases planned, 3 to measure, 1 unsupported" in answer.out
    assert "unsupported: 1 x single_device runs on one device" in answer.out
    assert "memory: about " in answer.out
    assert list(accuracy.folder.iterdir()) == []
    answer = accuracy(*words, "output_dir=run", "name=mine")
    assert "4 cases on cpu, 1 of them unsupported" in answer.err
    assert "error / single device's error" in answer.out
    assert answer.out.rstrip().endswith("3 measured, 1 unsupported, 0 failed")
    about = json.loads((accuracy.folder / "run" / "run.json").read_text())
    assert (about["schema_version"], about["experiment"], about["planned"]) == (table.SCHEMA_VERSION, "mine", 4)
    assert about["command"].startswith("accuracy problem.seqlen=32 ")
    assert about["config"]["problem"]["seqlen"] == 32
    assert about["started"] <= about["ended"]
    assert {*about["cases"]} == {*storage.finished_cases(storage.read_files(accuracy.folder / "run"))}
    assert about["provenance"]["packages"]["torch"]


def test_the_rows_are_those_of_one_worker_and_one_thread_bit_for_bit(tmp_path: Path, accuracy: CommandLine) -> None:
    """Results, positions and steps, what they cost aside. Two threads for a case are what changes last digits."""
    words = ("device=cpu", "variant=ring", "dtype=float32", "problem.seqlen=256", "reruns.trace=true",
             "report=false")  # fmt: skip
    grid = ("world_size=[1,2]", "seed=[0,1]")
    commands = {"plain": grid, "one": (*grid, "workers=1"), "threads": ("workers=1", "threads=2", "world_size=1")}
    about = {}
    for name, more in commands.items():
        given = (*words, f"output_dir={tmp_path / name}", *more)
        answer = finish(start(tmp_path, *given, threads=2)) if name == "plain" else accuracy(*given)
        assert answer.status == 0, answer.err
        run = json.loads((tmp_path / name / "run.json").read_text())
        about[name] = run["workers"], run["fingerprint"]["knobs"]["threads"]
    assert about == {"plain": (2, 1), "one": (1, 1), "threads": (1, 2)}
    for read in (table.read_results, *(partial(table.read_side, name=name) for name in ("positions", "steps"))):
        here, there = numbers(tmp_path / "plain", read), numbers(tmp_path / "one", read)
        assert len(here)
        pd.testing.assert_frame_equal(here, there, check_exact=True)
    plain, other = numbers(tmp_path / "plain"), numbers(tmp_path / "threads")
    same_case = plain[plain["case_id"].isin(other["case_id"])].reset_index(drop=True)
    assert len(same_case) == len(other)
    assert not same_case.equals(other)


@pytest.mark.gpu
def test_on_all_gpus_the_rows_are_those_of_one(accuracy: CommandLine) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    words = (*TINY, "variant=[ring,zigzag]", "dtype=[bfloat16,float32]", "world_size=[1,2,4]", "seed=[0,1]")
    for folder, workers in (("alone", "workers=1"), ("all", "workers=auto")):
        assert accuracy(*words, "kernel=eager", f"output_dir={folder}", workers).status == 0
    here, there = (numbers(accuracy.folder / name) for name in ("alone", "all"))
    pd.testing.assert_frame_equal(here, there, check_exact=True)
