"""Models of Hugging Face, randomly initialised: captured and judged without a word about their attention."""

from pathlib import Path

import pytest
import torch

import accuracy
from accuracy.core.recording import recorded

SIZES = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


OTHER = {"sliding_window": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "attn_logit_softcapping": 2.0}


@pytest.mark.stress(2)
@pytest.mark.parametrize(
    ("kind", "attention"), [("Llama", "sdpa"), ("Qwen3", "eager"), ("Gemma2", "eager"), ("GptOss", "eager")]
)
def test_a_small_model_is_captured_and_healthy(tmp_path: Path, kind: str, attention: str) -> None:
    """Windows, a softcap (Gemma 2) and sinks (GPT-OSS) among them."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed; pip install transformers")
    torch.manual_seed(0)
    other = OTHER if kind in ("Gemma2", "GptOss") else {}
    config = getattr(transformers, f"{kind}Config")(**SIZES, **other, attn_implementation=attention)
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
