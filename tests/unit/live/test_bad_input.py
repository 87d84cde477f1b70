"""A capture that cannot be judged is one line and status 2; what is there stays."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from accuracy.cli import judge as command
from accuracy.cli import reduce
from accuracy.core.recording import HEADER, Facts
from tests.command_line import line_of

B, S, H, HK, D = 1, 8, 2, 1, 4
SHAPES = {"q": (B, S, H, D), "k": (B, S, HK, D), "v": (B, S, HK, D), "out": (B, S, H, D)}


def facts(**other: Any) -> Facts:
    given = {"layer": "a", "step": 0, "rank": 0, "ranks": (0,), "function": "f", "layout": "bshd", "dtype": "float32"}
    return Facts(**{**given, "shapes": SHAPES, "scale": 0.5, **other})


def written(folder: Path, about: Facts, shapes: dict[str, tuple[int, ...]] | None = None, **tensors: Any) -> Path:
    folder.mkdir(exist_ok=True)
    held = {name: torch.randn(shape) for name, shape in (shapes or about.shapes).items()} | tensors
    save_file({f"{about.layer}.{name}": x for name, x in held.items()}, folder / about.file, about.header)
    return folder / about.file


def cut_short(folder: Path) -> None:
    path = written(folder, facts())
    path.write_bytes(path.read_bytes()[:-64])


def another_rank_s(folder: Path) -> None:
    written(folder, facts(ranks=(0, 1)))
    longer = {name: (B, S + 2, *shape[2:]) for name, shape in SHAPES.items()}
    written(folder, facts(ranks=(0, 1), rank=1, shapes=longer))


def foreign(folder: Path, header: dict[str, str] | None) -> None:
    save_file({"a.q": torch.zeros(2)}, folder / "a.rank0.safetensors", header)


def twice(folder: Path) -> None:
    written(folder, facts())
    (folder / "copy.rank0.safetensors").write_bytes((folder / facts().file).read_bytes())


BROKEN = {HEADER: json.dumps(json.loads(facts().header[HEADER]) | {"scale": "wide"})}
BAD = {
    "nothing": (lambda folder: None, "holds no capture; give the folder of `with accuracy.capture("),
    "truncated": (cut_short, "a.step000000.call0.rank0.safetensors cannot be read as safetensors"),
    "other shapes": (lambda folder: written(folder, facts(), SHAPES | {"k": (B, S, H, D)}),
                     "k is [1, 8, 2, 4], its header says [1, 8, 1, 4]"),
    "another dtype": (lambda folder: written(folder, facts(dtype="bfloat16")),
                      "q is float32, its header says dtype 'bfloat16'"),
    "a rank twice": (twice, "two files are of the same rank"),
    "ranks that disagree": (another_rank_s, "rank 1 has other shapes or settings than rank 0"),
    "no header": (lambda folder: foreign(folder, None), "is no file of a capture: its header lacks accuracy_capture"),
    "a broken header": (lambda folder: foreign(folder, BROKEN), "scale in its header: "),
}  # fmt: skip


def test_it_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (damage, line) in BAD.items():
        folder = tmp_path / name
        folder.mkdir()
        damage(folder)
        before = sorted(folder.iterdir())
        assert command.main([str(folder)]) == 2
        assert line in line_of(capsys, "accuracy judge"), name
        assert sorted(folder.iterdir()) == before


def test_random_results_are_wrong_and_zeros_are_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for zeros in ({}, {"out": torch.zeros(SHAPES["out"])}):
        written(tmp_path, facts(), **zeros)
        assert command.main([str(tmp_path)]) == command.FAULTY
    assert command.main([str(tmp_path), "--layers", "*.7"]) == 2
    assert "layers=*.7 fits no layer" in capsys.readouterr().err


HOSTILE = ("\x1b[31mred", "'''\nimport os", "</script><b>", "=1+1", "\u202e", "a" * 5000, "")
WORDS = ("dtype", "function", "note", "layout", "autocast", "layer", "sharding", "mask")


@pytest.mark.stress(8, "field")
@pytest.mark.parametrize("field", WORDS)
@pytest.mark.parametrize("value", [*HOSTILE, "int8"])
def test_a_hostile_word_of_a_header_is_no_error_of_the_program_and_sends_no_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: str
) -> None:
    """Whatever it says, it is refused or judged; the terminal and the spreadsheet get its words as plain text."""
    header = json.loads(facts().header[HEADER]) | {field: value}
    held = {f"{header['layer']}.{name}": torch.randn(shape) for name, shape in SHAPES.items()}
    save_file(held, tmp_path / "a.rank0.safetensors", {HEADER: json.dumps(header)})
    for main in (command.main, reduce.main):
        assert main([str(tmp_path)]) in (0, 2, command.NOTHING_MEASURED, command.FAULTY)
        printed = capsys.readouterr()
        assert "".join((printed.out + printed.err).split("\n")).isprintable()
    table = tmp_path / "judge.csv"
    text = table.read_text() if table.exists() else ""
    assert text.replace("\n", "").isprintable()
    assert not any(cell.startswith("=") for line in csv.reader(text.splitlines()) for cell in line)
