"""A run can be killed, interrupted and resumed at any moment; what fails is a row; a folder holds one setting."""

import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from accuracy import parts, provenance, table
from accuracy.command import run as command
from accuracy.configuration import read
from accuracy.run import folder_of
from tests.command_line import TINY, Answer, CommandLine, finish, start
from tests.composing import composed

SEEDS = ",".join(str(seed) for seed in range(12))
GRID = (
    *TINY,
    "device=cpu",
    "variant=[ring,zigzag]",
    "dtype=[bfloat16,float32]",
    "world_size=[1,2,4]",
    f"seed=[{SEEDS}]",
)
CASES = 2 * 2 * 3 * 12
KILLS, INTERRUPT = (1, 30), 60  # as soon as so many cases are on disk
COST = ["seconds", "peak_bytes"]


@pytest.fixture
def accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path, monkeypatch, capsys)


# Killed, interrupted, resumed


@dataclass(frozen=True)
class Stop:
    """What a run had left when it was stopped."""

    answer: Answer
    results: pd.DataFrame
    written: dict[str, int]  # when each case's file was written, in nanoseconds
    about: dict


def stop(process: "subprocess.Popen[str]", folder: Path, with_signal: signal.Signals, after: int) -> Stop:
    """Send the signal as soon as `after` cases are on disk."""
    deadline = time.monotonic() + 60
    while len(list(folder.glob("results/*.parquet"))) < after:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(with_signal)
    return look(finish(process), folder)


def look(answer: Answer, folder: Path) -> Stop:
    files = {path.stem: path.stat().st_mtime_ns for path in folder.glob("results/*.parquet")}
    return Stop(answer, pd.read_parquet(folder / "results"), files, json.loads((folder / "run.json").read_text()))


@dataclass(frozen=True)
class Story:
    """A run killed early and late, then interrupted, then left to end; and the same command left alone."""

    killed: list[Stop]
    interrupted: Stop
    ended: Stop
    undisturbed: Stop


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder, quiet = (tmp_path_factory.mktemp(name) for name in ("disturbed", "undisturbed"))
    alone = start(quiet, *GRID, "output_dir=run")
    try:
        killed = [
            stop(start(folder, *GRID, "output_dir=run"), folder / "run", signal.SIGKILL, after) for after in KILLS
        ]
        interrupted = stop(start(folder, *GRID, "output_dir=run"), folder / "run", signal.SIGINT, INTERRUPT)
        ended = look(finish(start(folder, *GRID, "output_dir=run")), folder / "run")
        return Story(killed, interrupted, ended, look(finish(alone), quiet / "run"))
    finally:
        alone.kill()


def assert_whole_cases_only(results: pd.DataFrame) -> None:
    """Six tensors on every rank and on all ranks together."""
    rows = results.groupby("case_id").agg(rows=("rank", "size"), world_size=("world_size", "first"))
    assert (rows["rows"] == len(table.TENSORS) * (rows["world_size"] + 1)).all()
    assert (results["status"] == table.OK).all()


@pytest.mark.xdist_group("story")
def test_a_kill_leaves_a_readable_table_of_whole_cases(story: Story) -> None:
    for stopped, after in zip(story.killed, KILLS, strict=True):
        assert stopped.answer.status == -signal.SIGKILL
        assert after <= len(stopped.written) < CASES
        assert set(stopped.results["case_id"]) == set(stopped.written)
        assert_whole_cases_only(stopped.results)
        assert stopped.about["ended"] is None


@pytest.mark.xdist_group("story")
def test_an_interrupt_ends_the_run_in_order(story: Story) -> None:
    stopped = story.interrupted
    assert stopped.answer.status == command.INTERRUPTED
    assert "Traceback" not in stopped.answer.err
    assert "interrupted: the same command goes on from here" in stopped.answer.out
    assert INTERRUPT <= len(stopped.written) < CASES
    assert_whole_cases_only(stopped.results)
    assert stopped.about["ended"] is None


@pytest.mark.xdist_group("story")
def test_resuming_keeps_what_is_there_and_measures_the_rest(story: Story) -> None:
    assert story.ended.answer.status == 0
    earlier = story.interrupted.written
    assert {case_id: story.ended.written[case_id] for case_id in earlier} == earlier
    assert f"{CASES - len(earlier)} measured, 0 declined, 0 failed, {len(earlier)} found done" in story.ended.answer.out
    assert len(story.ended.written) == CASES
    assert story.ended.about["ended"] is not None


@pytest.mark.xdist_group("story")
def test_a_disturbed_run_ends_with_the_numbers_of_an_undisturbed_one(story: Story) -> None:
    """Bit for bit, what it cost aside."""
    disturbed, undisturbed = (
        each.results.drop(columns=COST).sort_values(["case_id", "tensor", "rank"], ignore_index=True)
        for each in (story.ended, story.undisturbed)
    )
    assert_whole_cases_only(disturbed)
    pd.testing.assert_frame_equal(disturbed, undisturbed, check_exact=True)
    for name in table.METRICS:
        assert disturbed[name].to_numpy().tobytes() == undisturbed[name].to_numpy().tobytes(), name


# One folder, one setting


SHORT = (*TINY, "device=cpu", "variant=ring", "world_size=2", "dtype=float32")


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
    assert "1 measured, 0 declined, 0 failed, 1 found done" in accuracy(*SHORT, "output_dir=run", "seed=[0,1]").out
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
    assert about["cases"] == list(table.finished_cases(accuracy.folder / "run"))
    assert about["provenance"]["packages"]["torch"]


def folder_for(*words: str) -> Path:
    config = composed(*words)
    return folder_of(read(config), config)


@pytest.mark.parametrize("knob", ["report=false", "dry_run=true", "truth.folder=null", "truth.min_seconds=5"])
def test_a_knob_that_leaves_the_numbers_alone_leaves_the_default_folder_alone(knob: str) -> None:
    assert folder_for(knob) == folder_for()


@pytest.mark.parametrize(
    "knob",
    [
        "variant=ring",
        "kernel=eager",
        "precision.merge=double",
        "inputs=outliers",
        "inputs.gaussian.std=2",
        "problem=issue42",
        "problem.seqlen=64",
        "problem.mask=full",
        "problem.softmax_scale=1",
        "dtype=float32",
        "world_size=2",
        "seed=1",
        "name=other",
    ],
)
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


# What fails is a row


RING = """
import torch
from accuracy.variant import ring
from accuracy.variant.ring import BACKWARD_PLACES, FORWARD_PLACES, PRECISION, SHARDINGS, backward, decline, forward
"""
BROKEN = {  # code, and the reason in the row
    "raises": (
        """
async def forward(rank, q, k, v):
    if rank.world.rank == 1:
        raise ValueError("planted")
    return await ring.forward(rank, q, k, v)
""",
        "rank 1: ValueError: planted",
    ),
    "gives_nan": (
        """
async def backward(rank, dout, q, k, v, out, lse):
    dq, dk, dv = await ring.backward(rank, dout, q, k, v, out, lse)
    dq[0, 0, 0, :2] = torch.nan
    return dq, dk, dv
""",
        "4 non-finite values in dq",  # two on each of two ranks
    ),
    "upcasts": (
        """
async def backward(rank, dout, q, k, v, out, lse):
    dq, dk, dv = await ring.backward(rank, dout, q, k, v, out, lse)
    return dq, dk, (dv.double() if rank.world.rank == 1 else dv)
""",
        "RuntimeError: dv came as (2, 1, 16, 2, 8) torch.float64, expected (2, 1, 16, 2, 8) float32 (ranks first)",
    ),
    "misshapes": (
        """
async def backward(rank, dout, q, k, v, out, lse):
    dq, dk, dv = await ring.backward(rank, dout, q, k, v, out, lse)
    return dq, dk[:, :1], dv
""",
        "RuntimeError: dk came as (2, 1, 1, 2, 8) torch.float32, expected (2, 1, 16, 2, 8) float32 (ranks first)",
    ),
    "waits_for_ever": (
        """
async def backward(rank, dout, q, k, v, out, lse):
    gradients = await ring.backward(rank, dout, q, k, v, out, lse)
    if rank.world.rank == 0:
        await rank.world.ring_shift(gradients)
    return gradients
""",
        "Deadlock: rank 0 waits for operation ",
    ),
    "writes_to_its_inputs": (
        """
async def forward(rank, q, k, v):
    result = await ring.forward(rank, q, k, v)
    q.mul_(2)
    return result
""",
        "rank 0: RuntimeError: the variant wrote to its inputs",
    ),
}


def plant(folder: Path, name: str, code: str) -> None:
    (folder / "variant").mkdir(parents=True, exist_ok=True)
    (folder / "variant" / f"{name}.py").write_text(RING + code)
    (folder / "variant" / f"{name}.yaml").write_text(
        f"# @package variant.{name}\n# Planted fault\nforward: {name}\nbackward: {name}\nsharding: contiguous\n"
    )


def test_a_failing_variant_is_a_row_with_its_reason_and_the_run_goes_on(accuracy: CommandLine) -> None:
    for name, (code, _) in BROKEN.items():
        plant(accuracy.folder / "parts", name, code)
    words = (*SHORT, f"variant=[{','.join([*BROKEN, 'zigzag'])}]", "output_dir=run")
    answer = accuracy("--config-dir=parts", *words)
    assert answer.status == 0
    assert f"1 measured, 0 declined, {len(BROKEN)} failed" in answer.out
    results = table.read_results(accuracy.folder / "run")
    assert set(results[results["status"] == table.OK]["variant"]) == {"zigzag"}
    reasons = results.groupby("variant")["reason"].unique()
    for name, (_, reason) in BROKEN.items():
        assert (results[results["variant"] == name]["status"] == table.FAILED).all()
        assert len(reasons[name]) == 1
        assert reasons[name][0].startswith(reason)
    assert results[results["variant"] == "gives_nan"]["nonfinite"].max() == 4  # its numbers are kept


def test_when_nothing_could_be_measured_the_status_says_so_every_time(accuracy: CommandLine) -> None:
    """Also when declined cases were found done: they are no measurement. (36 tokens: zigzag declines four ranks.)"""
    plant(accuracy.folder / "parts", "raises", BROKEN["raises"][0].replace("== 1", "== 0"))
    (accuracy.folder / "parts" / "variant" / "mirrored.yaml").write_text(
        "# @package variant.mirrored\n# Planted fault\nforward: mirrored\nbackward: mirrored\nsharding: zigzag\n"
    )
    code = (accuracy.folder / "parts" / "variant" / "raises.py").read_text()
    (accuracy.folder / "parts" / "variant" / "mirrored.py").write_text(code + "SHARDINGS = ('zigzag',)\n")
    words = (*SHORT, "variant=[raises,mirrored]", "world_size=[2,4]", "problem.seqlen=36", "output_dir=run")
    for found in ("", ", 1 found done"):
        answer = accuracy("--config-dir=parts", *words)
        assert answer.status == command.NOTHING_MEASURED
        assert f"0 measured, {0 if found else 1} declined, 3 failed{found}" in answer.out


def test_out_of_memory_is_a_row_and_the_run_goes_on(accuracy: CommandLine) -> None:
    plant(
        accuracy.folder / "parts",
        "hungry",
        "async def forward(rank, q, k, v):\n    raise torch.OutOfMemoryError('CUDA out of memory')\n",
    )
    answer = accuracy("--config-dir=parts", *SHORT, "variant=[hungry,ring]", "output_dir=run")
    assert answer.status == 0
    reasons = table.read_results(accuracy.folder / "run").set_index("variant")["reason"]
    assert reasons["hungry"] == "rank 0: OutOfMemoryError: CUDA out of memory"


def test_a_part_of_ones_own_that_was_edited_is_measured_again(accuracy: CommandLine) -> None:
    """Else its author would read yesterday's numbers after a correction."""

    def again(code: str) -> str:
        plant(accuracy.folder / "parts", "edited", code)
        parts.load.cache_clear()  # as a new process has it
        provenance._files_digest.cache_clear()
        return accuracy("--config-dir=parts", *SHORT, "variant=[edited,ring]", "output_dir=run").out

    assert "2 measured, 0 declined, 0 failed" in again("")
    assert "0 measured, 0 declined, 0 failed, 2 found done" in again("")
    assert "1 measured, 0 declined, 0 failed, 1 found done" in again("# corrected\n")
    codes = table.read_results(accuracy.folder / "run").groupby("variant")["code"].unique()
    assert codes["ring"].tolist() == [provenance.code_digest()]
    assert codes["edited"][0].startswith(f"{provenance.code_digest()}+")


def test_the_terminal_shows_a_plan_and_ends_with_a_table(accuracy: CommandLine) -> None:
    answer = accuracy(*SHORT, "variant=[one_shot,ring]", "world_size=[1,2]", "output_dir=run")
    assert "4 cases on cpu, 1 of them declined" in answer.err
    assert "error / one-shot's error" in answer.out
    assert answer.out.rstrip().endswith("3 measured, 1 declined, 0 failed")


def test_a_dry_run_prints_the_plan_and_writes_nothing(accuracy: CommandLine) -> None:
    answer = accuracy(*SHORT, "variant=[one_shot,ring]", "world_size=[1,2]", "dry_run=true")
    assert answer.status == 0
    assert "4 cases planned, 3 to measure, 1 declined" in answer.out
    assert "declined: 1 x one_shot runs on one device" in answer.out
    assert "memory: about " in answer.out
    assert list(accuracy.folder.iterdir()) == []
