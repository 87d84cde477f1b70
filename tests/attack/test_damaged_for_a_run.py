"""What a run reads may be damaged: its own folder, the file of its inputs, the references kept on disk."""

import random
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from accuracy.inputs import captured
from accuracy.results import table
from tests.attack.damages import damage
from tests.command_line import SHORT, Answer, CommandLine
from tests.measuring import COSTS
from tests.sampling import seeds

WORDS = (*SHORT, "output_dir=run")
CACHED = (*(word for word in WORDS if "reference" not in word), "reference.folder=kept", "reference.min_seconds=0")
CAPTURED = (*SHORT, "output_dir=run", "inputs=captured", "inputs.captured.path=file.safetensors")
Whole = dict[str, tuple[Path, pd.DataFrame]]


def numbers(folder: Path) -> pd.DataFrame:
    rows = table.read_results(folder).drop(columns=COSTS)
    return rows.sort_values(["case_id", "tensor", "rank"], ignore_index=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """By name, what an undisturbed run started and ended with: a folder, and the numbers."""
    return {}


def once(accuracy: CommandLine, whole: Whole, words: tuple[str, ...], keep: Path) -> pd.DataFrame:
    """The numbers of an undisturbed run, and its folder in place of the working directory's content."""
    if words[-1] not in whole:
        assert accuracy(*words).status == 0
        whole[words[-1]] = Path(shutil.copytree(accuracy.folder, keep)), numbers(accuracy.folder / "run")
        shutil.rmtree(accuracy.folder / "run")
    folder, found = whole[words[-1]]
    shutil.copytree(folder, accuracy.folder, dirs_exist_ok=True)
    return found


def assert_told(answer: Answer, said: object) -> None:
    assert answer.status in (0, 2, 3), (said, answer)
    assert "Traceback" not in answer.out + answer.err, (said, answer)
    if answer.status == 2:
        assert answer.err.count("\n") == 1, (said, answer)
        assert answer.err[:-1].isprintable(), (said, answer)


@pytest.mark.stress(6, "target")
@pytest.mark.parametrize("seed", seeds(100))
@pytest.mark.parametrize("target", ["results/*.parquet", "run.json"])
def test_a_damaged_run_goes_on_with_the_same_numbers_or_says_why_not(
    target: str, seed: int, accuracy: CommandLine, whole: Whole, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = once(accuracy, whole, WORDS, tmp_path_factory.mktemp("whole") / "it")
    draw = random.Random(f"{target} {seed}")
    how = damage(draw.choice(sorted((accuracy.folder / "run").glob(target))), draw)
    answer = accuracy(*WORDS)
    assert_told(answer, how)
    if answer.status != 2:
        assert answer.status == 0
        pd.testing.assert_frame_equal(numbers(accuracy.folder / "run"), found, check_exact=True)


@pytest.mark.stress(4)
@pytest.mark.parametrize("seed", seeds(100))
def test_a_damaged_reference_is_computed_again(
    seed: int, accuracy: CommandLine, whole: Whole, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = once(accuracy, whole, CACHED, tmp_path_factory.mktemp("whole") / "it")
    shutil.rmtree(accuracy.folder / "run")
    (path,) = (accuracy.folder / "kept").iterdir()
    how = damage(path, random.Random(seed))
    assert accuracy(*CACHED).status == 0, how
    pd.testing.assert_frame_equal(numbers(accuracy.folder / "run"), found, check_exact=True)


@pytest.mark.stress(4)
@pytest.mark.parametrize("seed", seeds(100))
def test_damaged_inputs_are_told_or_are_other_inputs_by_their_digest(
    seed: int, accuracy: CommandLine, whole: Whole, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = torch.Generator().manual_seed(0)
    shapes = {f"layer_0.{name}": torch.randn(1, 32, 2, 8, generator=drawn) for name in captured.NAMES}
    path = accuracy.folder / "file.safetensors"
    save_file(shapes, path)
    found = once(accuracy, whole, CAPTURED, tmp_path_factory.mktemp("whole") / "it")
    shutil.rmtree(accuracy.folder / "run")
    captured._shapes.cache_clear()  # a process reads the file once: this one plays two
    captured._digest.cache_clear()
    how = damage(path, random.Random(seed))
    answer = accuracy(*CAPTURED)
    assert_told(answer, how)
    if answer.status == 0:
        rows = numbers(accuracy.folder / "run")
        assert set(rows["code"]).isdisjoint(found["code"]) or rows.equals(found), how
