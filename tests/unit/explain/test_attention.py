"""What a hypothesis does not change is kept: every value is that of an attention which was computed anew."""

from dataclasses import fields, replace
from functools import cached_property

import pytest
import torch

from accuracy.explain.hypothesis.attention import MADE_OF, Attention

DRAW = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


VALUES = [name for name, each in vars(Attention).items() if isinstance(each, cached_property)]
STAGES = ("scores", "lse", "weights", "out", "backward_weights", "delta", "dp", "ds", "dq", "dk", "dv", "dk_heads")
CHANGES = {
    "q": drawn(1, 4, 6, 8), "k": drawn(1, 2, 6, 8), "v": drawn(1, 2, 6, 8), "dout": drawn(1, 4, 6, 8), "scale": 0.7,
    "counts": torch.ones(6, 6, dtype=torch.float64), "heads": torch.tensor([0, 1, 0, 1]), "softcap": 3.0,
    "dropout": drawn(1, 4, 6, 6).abs(), "saved": (drawn(1, 4, 6, 8), drawn(1, 4, 6)),
}  # fmt: skip


@pytest.fixture
def known() -> Attention:
    """One of which everything has been computed."""
    q, k, v, dout = drawn(1, 4, 6, 8), drawn(1, 2, 6, 8), drawn(1, 2, 6, 8), drawn(1, 4, 6, 8)
    counts = torch.ones(6, 6, dtype=torch.float64).tril()
    found = Attention(q, k, v, dout, 0.3, counts, torch.tensor([0, 0, 1, 1]), softcap=5.0)
    for name in VALUES:
        getattr(found, name)
    return found


@pytest.mark.parametrize("name", [*CHANGES, *(f"stage {each}" for each in STAGES)])
def test_a_change_leaves_no_stale_value(known: Attention, name: str) -> None:
    stage = name.removeprefix("stage ")
    change = {"stages": {stage: lambda x: 2 * x}} if name != stage else {name: CHANGES[name]}
    changed, anew = known.but(**change), replace(known, **change)
    for value in VALUES:
        torch.testing.assert_close(getattr(changed, value), getattr(anew, value), rtol=0, atol=0)
    back = changed.but(**{key: getattr(known, key) for key in change})
    assert all(torch.equal(getattr(back, value), getattr(known, value)) for value in VALUES)


def test_every_input_and_kept_value_is_named() -> None:
    """A stage that a list forgets would be stale."""
    inputs = {each.name for each in fields(Attention)} - {"stages"}
    named = set().union(*MADE_OF.values())
    assert inputs == {*CHANGES} == {each for each in named if each in inputs}
    assert {*MADE_OF} == {*VALUES} - {"dq", "dk", "dv"}
