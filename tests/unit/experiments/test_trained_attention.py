"""trained_attention's own code: its errors are those of what is planted, its captures the model's, its tables whole."""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from accuracy.core.paths import EXPERIMENTS
from experiments.depth.layers import rounding
from experiments.trained_attention import __main__ as script
from experiments.trained_attention import errors
from experiments.training_effect.model import beginning, joined, loss

TINY = script.SIZES["tiny"]
TABLES = runpy.run_path(str(EXPERIMENTS / "trained_attention/tables.py"))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        text = joined([Path(script.__file__)])
        patch.setattr(script, "corpus", lambda: (text, text))
        script.main(str(folder), "tiny")
    return pd.read_csv(folder / "tiny.csv.gz")


def test_errors_are_those_that_are_planted() -> None:
    """One row of rank 1 is wrong by a tenth, everything by a thousandth; single device by half of that."""
    case = next(each for each in script.cases(TINY) if each.variant.name == "ring" and each.world_size == 4)
    reference = torch.randn(1, 64, 2, 16, dtype=torch.float64)
    wrong = 1.001 * reference
    wrong[0, 20, 1] = 1.1 * reference[0, 20, 1]
    found = errors.columns(case, wrong, 1.0005 * reference, reference)
    sizes = reference.square().sum(-1)
    share = float(sizes[0, 20, 1] / sizes[0, 16:32].sum())
    assert found["row_median"] == pytest.approx(1e-3)
    assert found["row_worst"] == pytest.approx(0.1)
    assert found["single_device_row_worst"] == pytest.approx(5e-4)
    assert found["x_worst_rank"] == pytest.approx((1e-6 * (1 - share) + 1e-2 * share) ** 0.5 / 5e-4)
    assert found["error_rel"] > found["single_device_rel"] == pytest.approx(5e-4)
    assert found["floor_rel"] == 0.0  # float64 is not rounded


def test_captured_tensors_give_the_gradients_that_training_has() -> None:
    """dq, dk and dv of the captured q, k, v and dout make the gradients of the layer's weights."""
    torch.manual_seed(0)
    weights = beginning(1, TINY.heads, TINY.heads_kv, TINY.head_dim, "cpu")
    words = torch.randint(256, (1, TINY.tokens + 1))
    _, (inputs,) = script.capture(weights, words, TINY.head_dim)
    alone = next(each for each in script.cases(TINY) if each.world_size == 1)
    found = errors.exact(alone, inputs)
    seen = {}

    def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for name, x in {"dq": q, "dk": k, "dv": v}.items():
            x.register_hook(lambda gradient, name=name: seen.update({name: gradient}))
        return script.plain(q, k, v)

    attention = rounding(watched, torch.bfloat16, torch.float32)
    (loss(weights, words, attention, TINY.head_dim) * TINY.tokens).backward()
    for name, gradient in seen.items():
        assert errors.rows_of(gradient, found[name]).relative() < 0.02, name


def test_made_inputs_have_their_sink_and_their_channels() -> None:
    facts = {name["inputs"]: errors.facts(inputs, 0.25) for name, inputs in script.made(TINY._replace(tokens=256), 0)}
    sinks = {name for name, each in facts.items() if each["first_key"] > 0.8}
    channels = {name for name, each in facts.items() if each["largest_channel"] > 1.8}
    assert sinks == {"sink", "sink, heavy channels"}
    assert channels == {"heavy channels", "sink, heavy channels"}


def test_every_block_is_filled_and_llama3_s_out_is_single_device_s(table: pd.DataFrame) -> None:
    assert {*TABLES["of"](table)} == {*TABLES["BLOCKS"]}
    gathered = table[(table["variant"] == "llama3") & table["tensor"].isin(["out", "dq"])]
    assert len(gathered) == 2 * 2 * 2 * (len(script.MADE) + 2)  # tensors, numbers of ranks, seeds, inputs
    np.testing.assert_array_equal(gathered["error_rel"], gathered["single_device_rel"])
