"""A capture that cannot be judged is one line and status 2; what is there stays."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from accuracy.cli import judge as command
from accuracy.core.recording import HEADER, Facts

B, S, H, HK, D = 1, 8, 2, 1, 4
SHAPES = {"q": (B, S, H, D), "k": (B, S, HK, D), "v": (B, S, HK, D), "out": (B, S, H, D)}


def facts(**other: Any) -> Facts:
    given = {"layer": "a", "step": 0, "rank": 0, "ranks": (0,), "function": "f", "layout": "bshd", "dtype": "float32"}
    return Facts(**{**given, "shapes": SHAPES, "scale": 0.5, **other})


def written(folder: Path, about: Facts, shapes: dict[str, tuple[int, ...]] | None = None) -> Path:
    tensors = {f"{about.layer}.{name}": torch.randn(shape) for name, shape in (shapes or about.shapes).items()}
    path = folder / about.file
    save_file(tensors, path, about.header)
    return path


def cut_short(folder: Path) -> None:
    path = written(folder, facts())
    path.write_bytes(path.read_bytes()[:-64])


def other_shapes(folder: Path) -> None:
    written(folder, facts(), SHAPES | {"k": (B, S, H, D)})


def unfit(folder: Path) -> None:
    written(folder, facts(shapes=SHAPES | {"v": (B, S - 1, HK, D)}))


def another_rank_s(folder: Path) -> None:
    written(folder, facts(ranks=(0, 1)))
    longer = {name: (B, S + 2, *shape[2:]) for name, shape in SHAPES.items()}
    written(folder, facts(ranks=(0, 1), rank=1, shapes=longer))


def no_header(folder: Path) -> None:
    save_file({"a.q": torch.zeros(2)}, folder / "a.rank0.safetensors")


def broken_header(folder: Path) -> None:
    about = json.loads(facts().header[HEADER]) | {"scale": "wide"}
    save_file({"a.q": torch.zeros(2)}, folder / "a.rank0.safetensors", {HEADER: json.dumps(about)})


BAD = {
    "nothing there": (lambda folder: None, "holds no capture; give the folder of `with accuracy.capture("),
    "a truncated file": (cut_short, "a.step000000.call0.rank0.safetensors cannot be read as safetensors"),
    "shapes that are not those it states": (other_shapes, "k is [1, 8, 2, 4], its header says [1, 8, 1, 4]"),
    "shapes that disagree": (unfit, "q [1, 8, 2, 4], k [1, 8, 1, 4] and v [1, 7, 1, 4] do not belong together"),
    "ranks that disagree": (another_rank_s, "rank 1 has other shapes or settings than rank 0"),
    "a file of somebody's": (no_header, "is no file of a capture: its header lacks accuracy_capture"),
    "a header that is no header": (broken_header, "scale in its header: "),
}


def test_it_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (damage, line) in BAD.items():
        folder = tmp_path / name
        folder.mkdir()
        damage(folder)
        before = sorted(folder.iterdir())
        assert command.main([str(folder)]) == 2
        printed = capsys.readouterr()
        assert (printed.err.count("\n"), printed.out) == (1, ""), name
        assert printed.err.startswith("accuracy judge: ")
        assert line in printed.err
        assert sorted(folder.iterdir()) == before
    written(tmp_path, facts())
    assert command.main([str(tmp_path), "--layers", "*.7"]) == 2
    assert "layers=*.7 fits no layer" in capsys.readouterr().err


def test_random_results_are_wrong_and_zeros_are_too(tmp_path: Path) -> None:
    path = written(tmp_path, facts())
    assert command.main([str(tmp_path)]) == command.FAULTY
    about = facts()
    tensors = {f"a.{name}": torch.randn(shape) * (name != "out") for name, shape in SHAPES.items()}
    save_file(tensors, path, about.header)
    assert command.main([str(tmp_path)]) == command.FAULTY
