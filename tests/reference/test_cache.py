from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from accuracy.core.case import Part, Problem
from accuracy.core.fields import default_softmax_scale
from accuracy.inputs import drawing
from accuracy.reference import float64
from accuracy.reference.cache import Cache
from accuracy.reference.float64 import Reference

PROBLEM = Problem(
    batch=1, seqlen=8, heads=2, heads_kv=1, head_dim=4, mask="causal", softmax_scale=default_softmax_scale(4)
)
GAUSSIAN = Part("gaussian", "accuracy.inputs.distributions:gaussian", (("std", 1.0),))
MINE = """
import numpy as np

def draw(generator, shape, tensor, options):
    return generator.standard_normal(shape)
"""


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Reference]:
    references: list[Reference] = []
    attention = float64.attention

    def counted(*tensors: torch.Tensor, **how: Any) -> Reference:
        references.append(attention(*tensors, **how))
        return references[-1]

    monkeypatch.setattr(float64, "attention", counted)
    return references


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Reference]:
    def asked(
        problem: Problem = PROBLEM, part: Part = GAUSSIAN, seed: int = 0, dtype: str = "float32",
        min_seconds: float = 0.0, folder: Path | None = tmp_path / "reference",
    ) -> Reference:  # fmt: skip
        inputs = drawing.round_to(drawing.draw(part, problem, seed), dtype, "cpu")
        return Cache(folder, min_seconds).reference(problem, part, seed, dtype, inputs)

    return asked


def same(a: Reference, b: Reference) -> bool:
    return all(torch.equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(Reference))


def the_file(folder: Path) -> Path:
    (path,) = (folder / "reference").iterdir()
    return path


def test_a_reference_is_computed_once_and_read_back_bit_for_bit(ask, computed: list[Reference]) -> None:
    first, second = ask(), ask()
    assert len(computed) == 1
    assert same(first, second)
    assert all(getattr(second, field.name).dtype == torch.float64 for field in fields(Reference))


def test_without_a_folder_nothing_is_kept(ask, computed: list[Reference], tmp_path: Path) -> None:
    assert same(ask(folder=None), ask(folder=None))
    assert len(computed) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_quick_reference_is_not_kept(ask, computed: list[Reference], tmp_path: Path) -> None:
    ask(min_seconds=3600.0)
    ask(min_seconds=3600.0)
    assert len(computed) == 2
    assert not (tmp_path / "reference").exists()


def test_a_kept_reference_is_used_however_quick_it_was(ask, computed: list[Reference]) -> None:
    ask(min_seconds=0.0)
    ask(min_seconds=3600.0)
    assert len(computed) == 1


@pytest.mark.parametrize("kept", [0, 1, 0.5, 0.99])
def test_a_truncated_file_is_computed_again_and_mended(
    ask, computed: list[Reference], tmp_path: Path, kept: float
) -> None:
    whole = ask()
    path = the_file(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept) if kept in (0, 1) else int(len(content) * kept)])
    assert same(ask(), whole)
    assert len(computed) == 2
    assert same(ask(), whole)
    assert len(computed) == 2


def test_no_flipped_byte_ever_reaches_a_result(ask, computed: list[Reference], tmp_path: Path) -> None:
    """Every 41st byte: numbers, headers and directory. (A flip in a time stamp harms nothing and is not noticed.)"""
    whole = ask()
    path = the_file(tmp_path)
    content = path.read_bytes()
    places = range(0, len(content), 41)
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        assert same(ask(), whole), place
    assert len(computed) > len(places) / 2


def test_a_leftover_of_an_interrupted_write_is_not_read(ask, computed: list[Reference], tmp_path: Path) -> None:
    whole = ask()
    path = the_file(tmp_path)
    path.rename(path.with_name(f".{path.name}.4711"))
    assert same(ask(), whole)
    assert len(computed) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"problem": replace(PROBLEM, batch=2)}, {"problem": replace(PROBLEM, seqlen=9)},
        {"problem": replace(PROBLEM, heads=4)}, {"problem": replace(PROBLEM, heads_kv=2)},
        {"problem": replace(PROBLEM, head_dim=5)}, {"problem": replace(PROBLEM, mask="full")},
        {"problem": replace(PROBLEM, softmax_scale=0.25)}, {"part": replace(GAUSSIAN, options=(("std", 2.0),))},
        {"part": replace(GAUSSIAN, name="outliers", source="accuracy.inputs.distributions:outliers", options=())},
        {"seed": 1}, {"dtype": "bfloat16"},
    ],
    ids=str,
)  # fmt: skip
def test_whatever_changes_the_reference_changes_its_key(ask, computed: list[Reference], other: dict) -> None:
    ask()
    ask(**other)
    assert len(computed) == 2


def test_a_changed_line_in_an_inputs_file_changes_the_key(ask, computed: list[Reference], tmp_path: Path) -> None:
    """The same name and place: only the file's content tells that the numbers may be others."""
    source = tmp_path / "mine.py"
    source.write_text(MINE)
    part = Part("mine", str(source))
    ask(part=part)
    ask(part=part)
    assert len(computed) == 1
    source.write_text(MINE + "# or not\n")
    ask(part=part)
    assert len(computed) == 2
