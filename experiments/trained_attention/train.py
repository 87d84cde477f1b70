"""What does attention look like while a model trains? A byte-level language model, captured before and in 300 steps.

python experiments/trained_attention/train.py FOLDER [STEPS]

Model: transformers' Llama of two layers from its config (4 query heads over 2 key heads of 32, sdpa), float32, on the
CPU. Text: the Python sources and READMEs of this repository. Out: captures of both layers at the steps `CAPTURED`, of
one sequence of 512 bytes that is not trained on, its loss summed over tokens.
"""

import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import accuracy

ROOT = Path(__file__).parents[2]
SEQLEN, BATCH, STEPS, RATE = 512, 4, 300, 1e-3
CAPTURED = (0, 10, 30, 100, 300)
HELD_OUT = ROOT / "README.md"
CONFIG = {
    "vocab_size": 256, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": SEQLEN, "bos_token_id": None,
    "eos_token_id": None, "attn_implementation": "sdpa",
}  # fmt: skip


def corpus() -> tuple[Tensor, Tensor]:
    """Bytes to train on, and those held out (1, SEQLEN)."""
    files = sorted([*ROOT.glob("accuracy/**/*.py"), *ROOT.glob("experiments/*/README.md")])
    text = b"".join(path.read_bytes() for path in files)
    held_out = torch.tensor([[*HELD_OUT.read_bytes()[:SEQLEN]]])
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long(), held_out


def main(folder: str, steps: int = STEPS) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # sums in one order
    warnings.filterwarnings("ignore", "accuracy.capture: no call was captured")  # in steps beside `CAPTURED`
    text, held_out = corpus()
    model = LlamaForCausalLM(LlamaConfig(**CONFIG))
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    for step in range(steps + 1):
        with accuracy.capture(model, folder, every=10):
            if step in CAPTURED:
                loss = model(held_out, labels=held_out).loss
                (loss * SEQLEN).backward()
                print(f"step {step}: {loss.item():.3f} nats a byte of held-out text", flush=True)
        optimiser.zero_grad()
        begin = torch.randint(len(text) - SEQLEN, (BATCH, 1))
        batch = text[begin + torch.arange(SEQLEN)]
        model(batch, labels=batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
