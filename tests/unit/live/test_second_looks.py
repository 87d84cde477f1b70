"""What running bounds do not count of healthy functions is no fault in `judge`, and a fault beside it is found."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import accuracy
from accuracy.live import judge as judging
from accuracy.live.tensor_core import WAYS, bears, rounded
from tests.unit.api.test_uncounted import drawn, through_maximum, with_larger_largest
from tests.unit.live import model as small

LARGE = drawn(torch.bfloat16, 0.0, 0.0)
CASES: dict[str, tuple[list[Any], list[Tensor], str, str]] = {
    # a healthy function and one with a fault; what is wrong at the first look, and of the fault
    "a maximum with a gradient": (
        [through_maximum("exp"), through_maximum("exp", with_larger_largest)],
        drawn(torch.float32, 0.0, 30.0), "dk", "dk"),
    "a scaled q of 16 bits": (
        [through_maximum("exp2"), through_maximum("exp2", factor=1 + 2.0**-11)],
        drawn(torch.float16, 3.0, 0.0), "lse", "lse"),
    "q and k in TF32": (
        [small.attend_in_tf32, small.attend_in_tf32_with_higher_lse], drawn(torch.float32, 12.0, 0.0), "lse", "lse"),
    "scores of thousands": (
        [through_maximum("exp2"), through_maximum("exp2", factor=1 + 2.0**-6)],
        [1000 * LARGE[0], *LARGE[1:]], "dv", "lse"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_the_bounds_do_not_count_is_no_fault_and_hides_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions, tensors, alarm, fault = CASES[name]
    how = {"scale": 0.2, "cu_seqlens": torch.tensor([0, 96])} if "TF32" in name else {"softmax_scale": 0.2}
    for wrong, function in enumerate(functions):
        monkeypatch.setattr(small, "captured_here", function, raising=False)
        q, k, v, dout = (x.clone().requires_grad_() for x in tensors)
        with accuracy.capture(None, tmp_path / str(wrong), functions=[function]):
            small.captured_here(q, k, v, causal=True, **how)[0].backward(dout)  # type: ignore[attr-defined]
        found = accuracy.judge(tmp_path / str(wrong))
        first = found.first
        assert (found.healthy, first and first["tensor"]) == (not wrong, fault if wrong else None), found.sentence
    monkeypatch.setattr(judging, "_second_looks", lambda *_: ())
    assert (accuracy.judge(tmp_path / "0").first or {})["tensor"] == alarm


@pytest.mark.parametrize("way", WAYS)
def test_equal_weights_in_tf32_bear_its_mark_and_a_factor_larger_than_that_does_not(way: str) -> None:
    """1 / 33 loses more where it is cut off than v does in the mean, and all of out is smaller by that."""
    v = torch.randn(1, 33, 64, generator=torch.Generator().manual_seed(0))
    weights = torch.full((1, 33, 33), 1 / 33)
    reference, short = weights.double() @ v.double(), rounded(v, way).double()
    out, inside = (x.double() @ short for x in (rounded(weights, way), weights))
    assert bears(out - reference, inside, reference)
    assert not bears(1.004 * out - reference, inside, reference)
