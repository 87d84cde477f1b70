import math
from pathlib import Path

import pytest
import torch

from experiments.depth import weights as trained
from experiments.depth.weights import model_of
from tests.unit.experiments.depth.stacks import measured, one

FITTING = (
    "stack.weights=trained", "stack.width=64", "stack.feed_forward=192", "stack.vocabulary=256", "problem.seqlen=128",
    "problem.batch=1", "problem.heads=4", "problem.heads_kv=2", "problem.head_dim=32", "variant=ring", "world_size=4",
)  # fmt: skip


def test_a_file_trained_anew_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained.FILE.stat().st_size <= 1.5 * 2**20
    other = tmp_path / "trained.pt"
    other.write_bytes(trained.FILE.read_bytes() + b" ")
    monkeypatch.setattr(trained, "FILE", other)
    with pytest.raises(RuntimeError, match="is damaged"):
        trained._content.__wrapped__()


def test_it_predicts_text_that_it_was_not_trained_on() -> None:
    """Much better than knowing nothing (ln 256 nats a byte); in bfloat16 over a ring off by less than one rounding."""
    rows = measured(*FITTING, f"stack.layers={trained.LAYERS}")
    loss = rows[rows["tensor"] == "loss"].iloc[0]
    assert loss["reference_value"] < math.log(256) / 2
    assert loss["error_rel"] < 2**-8


def test_a_deeper_stack_repeats_its_layers_and_seeds_read_the_text_from_other_places() -> None:
    layers = model_of(*one(*FITTING, f"stack.layers={trained.LAYERS + 2}")).layers
    assert torch.equal(layers[trained.LAYERS + 1]["query"], layers[1]["query"])
    assert not torch.equal(layers[0]["query"], layers[1]["query"])
    assert not torch.equal(trained._words(1, 64, 0), trained._words(1, 64, 1))
