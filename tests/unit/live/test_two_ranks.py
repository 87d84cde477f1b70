import shutil
from pathlib import Path

import pytest

import accuracy
from accuracy.cli import judge as command
from accuracy.live.reduce import reduce
from accuracy.package import installed
from tests.command_line import line_of
from tests.processes import launched

pytestmark = pytest.mark.xdist_group("two_ranks")  # which are started once


def captured(folder: Path, ranks: int) -> Path:
    for ended in launched(ranks, str(Path(__file__).with_name("two_ranks.py")), str(folder), folder=folder):
        assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("two_ranks"), 2)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.stress)])
def test_sharded_weights_torch_context_parallelism_and_packed_rings_are_healthy(
    ranks: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Capture inside `context_parallel` and around it, where tensors are DTensors; documents by part, and cut."""
    folder = request.getfixturevalue("folder") if ranks == 2 else captured(tmp_path, ranks)
    packed = ["ring", "zigzag_ring", "llama3"] if installed.unsupported("ring-flash-attn") is None else []
    for kind in ("weights", "inside", "around", *packed):
        found = accuracy.judge(folder / kind)
        assert found.healthy, f"{kind}: {found.sentence}"
        assert {*found.rows["world_size"]} == {1 if kind == "weights" else ranks}, kind


def test_dk_and_dv_of_the_next_rank_are_found_in_their_layer_on_both_ranks(folder: Path) -> None:
    found = accuracy.judge(folder)
    first = found.first or {}
    assert (first["layer"], first["tensor"], first["label"], first["world_size"]) == ("1", "dv", "logic", 2)
    assert "dv of 1 in step 0 on ranks 0 and 1 of 2" in found.sentence
    assert accuracy.judge(folder, layers="0").healthy
    reduced = reduce(folder)  # one key's dv, proven by the capture itself
    assert (reduced.tensor, reduced.label) == ("dv", "logic")


@pytest.mark.skipif(installed.unsupported("ring-flash-attn") is not None, reason="ring-flash-attn is not installed")
def test_of_a_published_ring_the_float32_gradients_are_wrong_and_16_bits_are_healthy(folder: Path) -> None:
    """ring-flash-attn 0.1.8 sums gradients into a buffer that the next block overwrites: experiments/packages."""
    assert accuracy.judge(folder / "torch.bfloat16").healthy
    found = accuracy.judge(folder / "torch.float32")
    labels = found.rows[found.rows["rank"] == 1].set_index("tensor")["label"]
    assert (found.healthy, labels["out"], labels["dq"]) == (False, "rounding", "logic")


def test_a_rank_that_is_missing_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.glob("*.rank0.safetensors"):
        shutil.copy(path, tmp_path)
    assert command.main([str(tmp_path)]) == 2
    assert "0@0: of its ranks [0, 1] the file of rank 1 is missing" in line_of(capsys, "accuracy judge")
