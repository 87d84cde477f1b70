"""No drawn healthy function is accused, and one whose earlier chunks are not rescaled is."""

import math
from dataclasses import replace

import pytest
import torch

from tests.sampling import seeds
from tests.slow.foreign import drawn


@pytest.mark.parametrize("seed", seeds(40))
def test_a_drawn_healthy_function_passes(seed: int) -> None:
    assert drawn.refused(seed) == ""


@pytest.mark.stress(1)
@pytest.mark.parametrize("seed", [0, 2, 5, 20060, 20071])
def test_a_drawn_healthy_function_is_called_healthy_by_its_rows(seed: int) -> None:
    """All but 5 round scores to 16 bits: on peaked inputs that is far more than single device's rounding."""
    assert drawn.accused(seed) == ""


def test_a_drawn_function_with_a_fault_is_refused_and_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(99) if 0 < 4 * drawn.drawn(seed)[0].chunk <= drawn.drawn(seed)[1]["seqlen"])
    function, problem = drawn.drawn(seed)
    monkeypatch.setattr(drawn, "drawn", lambda seed: (replace(function, base_2=True), problem))
    monkeypatch.setattr(torch, "exp2", lambda x: torch.exp(x * math.log(2.5)))
    assert drawn.refused(seed)
    assert drawn.accused(seed)
