"""Models of Hugging Face, randomly initialised: captured and judged without a word about their attention."""

from pathlib import Path

import pytest
import torch

import accuracy
from accuracy.core.recording import recorded

transformers = pytest.importorskip("transformers", reason="transformers is not installed; pip install transformers")
SIZES = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "attention"), [("Llama", "sdpa"), ("Qwen3", "eager")])
def test_a_small_model_is_captured_and_healthy(tmp_path: Path, kind: str, attention: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, attn_implementation=attention)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16()
    x = torch.randint(0, 256, (2, 48))
    seen = torch.ones_like(x)
    seen[0, :9] = 0  # padding to the left
    for mask in (None, seen):
        with accuracy.capture(model, tmp_path, layers="*.1"):
            model(input_ids=x, labels=x, attention_mask=mask).loss.backward()
    found = accuracy.judge(tmp_path)
    assert found.healthy, found.sentence
    assert set(found.rows["tensor"]) == {"out", "dq", "dk", "dv"}
    plain, padded = (one.first for one in recorded(tmp_path))
    assert (plain.layer, plain.heads, plain.causal, plain.mask) == ("model.layers.1.self_attn", (4, 2), True, "")
    assert padded.mask
