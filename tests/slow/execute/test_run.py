import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch

from accuracy import cli as command
from accuracy.core.paths import PACKAGE
from accuracy.execute.run import folder_of
from accuracy.execute.settle import read_settled
from accuracy.measurement import provenance
from accuracy.results import storage, table
from tests import planting, processes
from tests.command_line import SHORT, TINY, Answer, CommandLine, finish, start
from tests.measuring import composed, numbers
from tests.processes import git

NO_NUMBERS = ("report=false", "dry_run=true", "workers=2")
NUMBERS = ("variant=ring", "precision.merge=double", "problem.seqlen=64", "seed=1", "name=other")


def test_the_default_folder_is_that_of_the_numbers_and_a_given_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command finds it again, whatever changes no number; other code has another one."""

    def folder_for(*words: str) -> Path:
        config = composed(*words)
        return folder_of(read_settled(config), config)

    own = folder_for()
    assert {folder_for(knob) for knob in NO_NUMBERS} == {own}
    assert len({own, *(folder_for(knob) for knob in NUMBERS)}) == 1 + len(NUMBERS)
    assert str(folder_for("name=mine")).startswith("outputs/mine-")
    assert folder_for("output_dir=here") == Path("here")
    monkeypatch.setattr(provenance, "code_digest", lambda: "another")
    assert folder_for() != own


def test_a_dry_run_prints_the_plan_and_a_run_ends_with_a_table_and_says_what_it_was(accuracy: CommandLine) -> None:
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


RING = """
from torch.nn.functional import scaled_dot_product_attention
from .scaling import FACTOR

def my_attention(q, k, v, *, causal, softmax_scale, group):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return FACTOR * out.transpose(1, 2)
"""
EDITED = ("variant=callable", "variant.fn=edited_package.my_attention", "world=processes", "world_size=1",
         "report=false", "dtype=float32", "problem.seqlen=32", "problem.head_dim=8",
         "output_dir=run")  # fmt: skip


def test_an_edit_is_measured_again_by_the_same_command(accuracy: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
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

    _, about = told(accuracy(*EDITED))
    assert (about["git_commit"], about["dirty"], about["files"]) == (git(folder, "rev-parse", "HEAD").strip(), False, 3)
    rows = len(table.read_results(folder / "run"))
    assert "1 found done" in told(accuracy(*EDITED))[0]
    (package / "scaling.py").write_text("FACTOR = 4.0\n")  # of another size: both writes may fall in one second
    said, about = told(finish(start(folder, *EDITED, PYTHONPATH=f"{PACKAGE.parent}:{folder}")))
    assert f"{rows} rows of other code are measured again" in said
    assert about["dirty"]
    found = table.read_results(folder / "run")
    assert (len(found), found["code"].nunique()) == (rows, 1)
    assert found.loc[found["tensor"] == "out", "error_rel"].round(3).eq(3.0).all()
    assert len(list(folder.glob("run/other_code/*/results/*.parquet"))) == 1


def test_when_nothing_could_be_measured_the_status_says_so_every_time(accuracy: CommandLine) -> None:
    """Also when unsupported cases were found done: they are no measurement. (36 tokens: zigzag does not support four
    ranks.)"""
    parts = planting.last(accuracy.folder / "parts", "raises", "forward", "raise ValueError('planted')")
    code = (parts / "variant" / "raises.py").read_text()
    planting.variant(parts, "mirrored", code.replace("Planted()", "Planted(shardings=('zigzag',))"), "zigzag")
    words = (*SHORT, "variant=[raises,mirrored]", "world_size=[2,4]", "problem.seqlen=36", "output_dir=run")
    for found in ("", ", 1 found done"):
        answer = accuracy("--config-dir=parts", *words)
        assert answer.status == command.NOTHING_MEASURED
        assert f"0 measured, {0 if found else 1} unsupported, 3 failed{found}" in answer.out


@pytest.mark.parametrize("world", ["simulated", pytest.param("processes", marks=pytest.mark.stress)])
def test_a_full_disk_is_one_line_and_what_was_measured_stays(accuracy: CommandLine, world: str) -> None:
    """No file may be longer than 8,000 bytes: run.json is shorter, a case's is not."""
    words = (*SHORT, "output_dir=run")
    assert accuracy(*words, "seed=[0,1]").status == 0
    limit = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000));"
    code = f"{limit} runpy.run_module('accuracy', run_name='__main__', alter_sys=True)"
    done = processes.python("-c", code, *words, f"world={world}", "seed=[0,1,2]", folder=accuracy.folder)
    told = [line for line in done.stderr.splitlines() if line.startswith("accuracy: ")]
    assert (done.returncode, len(told)) == (2, 1), done.stderr
    assert "(File too large)" in told[0]
    assert "Traceback" not in done.stderr
    assert "3 found done" not in accuracy(*words, "seed=[0,1,2]").out
    assert set(table.read_results(accuracy.folder / "run")["seed"]) == {0, 1, 2}
