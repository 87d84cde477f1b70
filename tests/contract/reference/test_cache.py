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
MINE = "def draw(generator, shape, tensor, options):\n    return generator.standard_normal(shape)\n"


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
    pairs = [(getattr(a, field.name), getattr(b, field.name)) for field in fields(Reference)]
    return all(x.dtype == y.dtype == torch.float64 and torch.equal(x, y) for x, y in pairs)


def test_a_reference_is_computed_once_and_read_back_bit_for_bit(ask, computed: list[Reference], tmp_path: Path) -> None:
    assert same(ask(folder=None), ask(min_seconds=3600.0))  # neither is kept: no folder, and too quick
    assert list(tmp_path.iterdir()) == []
    assert same(ask(), ask(min_seconds=3600.0))  # one that is kept is used however quick it was
    assert len(computed) == 3


def test_no_damage_ever_reaches_a_result(ask, computed: list[Reference], tmp_path: Path) -> None:
    """Cut short, or every 97th byte flipped: numbers, headers and directory. (A flip in a time stamp harms nothing and
    is not noticed.) A hidden file is what an interrupted write leaves."""
    whole = ask()
    (path,) = (tmp_path / "reference").iterdir()
    content = path.read_bytes()
    for number, kept in enumerate((0, 1, len(content) // 2, len(content) - 10), start=2):
        path.write_bytes(content[:kept])
        assert same(ask(), whole)
        assert same(ask(), whole)
        assert len(computed) == number
    path.rename(path.with_name(f".{path.name}.4711"))
    assert same(ask(), whole)
    assert len(computed) == 6
    places = range(0, len(content), 97)
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        assert same(ask(), whole), place
    assert len(computed) > 6 + len(places) / 2


def test_whatever_changes_the_reference_changes_its_key(ask, computed: list[Reference], tmp_path: Path) -> None:
    """Also a line of an inputs' file: the same name and place, and only its content says that numbers may be others."""
    source = tmp_path / "mine.py"
    source.write_text(MINE)
    changes = (
        {}, {"batch": 2}, {"seqlen": 9}, {"heads": 4}, {"heads_kv": 2}, {"head_dim": 5}, {"mask": "full"},
        {"softmax_scale": 0.25},
    )  # fmt: skip
    others: list[dict[str, Any]] = [{"problem": replace(PROBLEM, **each)} for each in changes]
    others += [
        {"part": replace(GAUSSIAN, options=(("std", 2.0),))}, {"seed": 1}, {"dtype": "bfloat16"},
        {"part": Part("outliers", "accuracy.inputs.distributions:outliers")}, {"part": Part("mine", str(source))},
    ]  # fmt: skip
    for number, other in enumerate(others, start=1):
        ask(**other)
        ask(**other)
        assert len(computed) == number, other
    source.write_text(MINE + "# or not\n")
    ask(**others[-1])
    assert len(computed) == len(others) + 1
