"""training_effect's own code finds a planted effect and no other."""

import runpy
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from accuracy.core.paths import EXPERIMENTS
from experiments.depth.attention import Attention
from experiments.training_effect import train as script

pytestmark = pytest.mark.xdist_group("training")
TABLES = runpy.run_path(str(EXPERIMENTS / "training_effect/tables.py"))
TINY = script.Size("cpu", "eager", 1, 64, 2, 16, 6, 1, 3e-3)
ONE, AGAIN, PLANTED = "one device", "again", "gradient times 1.05"


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 1.05 * gradient


@pytest.fixture(scope="module")
def trained() -> pd.DataFrame:
    """By seed: one device, one device again, and one device whose attention gives 1.05 times its gradients."""
    attention_of = script.attention_of

    def planted(size: script.Size, way: str) -> Attention:
        attention = attention_of(size, way)
        if way != PLANTED:
            return attention
        return lambda q, k, v: attention(*map(_Scaled.apply, (q, k, v)))

    text = torch.randint(32, 96, (20_000,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "joined", lambda files: text)  # not the package's, which changes with each commit
        patch.setitem(script.SIZES, "tiny", TINY)
        patch.setattr(script, "WAYS", {ONE: script.WAYS[ONE]})
        patch.setattr(script, "attention_of", planted)
        rows = [row for seed in range(3) for way in (ONE, AGAIN, PLANTED) for row in script.trained("tiny", seed, way)]
    found: pd.DataFrame = TABLES["_by_seed"](pd.DataFrame(rows, columns=script.COLUMNS))
    return found


def test_a_planted_factor_of_attention_s_gradients_is_found_and_nothing_else(trained: pd.DataFrame) -> None:
    found, none = (TABLES["_difference"](trained, "gradient norm", way, ONE) for way in (PLANTED, AGAIN))
    assert found["mean"] > found["least"] > 0.0
    assert none["mean"] == none["least"] == 0.0


def test_one_device_s_gradient_error_is_rounding_s(trained: pd.DataFrame) -> None:
    assert trained.loc[("gradient error", ONE)].between(2**-12, 2**-5).all()
