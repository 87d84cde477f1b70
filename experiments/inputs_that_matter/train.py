"""Where does accuracy/inputs/captured.safetensors come from? A tiny language model, trained here and caught in the act.

python experiments/inputs_that_matter/train.py FILE [STEPS]

Text: the sources of the standard library of the Python that runs this, byte by byte. Model: four layers of causal
attention (4 query heads over 1 key/value head of 32, RoPE, RMSNorm) and SwiGLU, 0.8 million parameters, float32, on
the CPU. Out: of the layers that CAPTURED names, q and k after RoPE, v, and dout, the gradient of the loss with
respect to the attention's output, on one sequence that was not trained on. The loss is summed over the tokens, not
averaged: a float16 case could not hold 1/1024 of it (which training in float16 remedies by scaling the loss in the same
way).
"""

import hashlib
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

SEQLEN, HEADS, HEADS_KV, HEAD_DIM, LAYERS, HIDDEN = 1024, 4, 1, 32, 4, 384
DIM = HEADS * HEAD_DIM
BATCH, STEPS, RATE, WARMUP, SEED = 4, 600, 3e-3, 50, 0
CAPTURED = (0, 2)
HELD_OUT = "textwrap.py"


class Attention(nn.Module):
    """Causal, grouped key/value heads; keeps its last q, k, v and out."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(DIM, (HEADS + 2 * HEADS_KV) * HEAD_DIM, bias=False)
        self.back = nn.Linear(DIM, DIM, bias=False)
        self.kept: tuple[Tensor, ...] = ()

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """(B, S, DIM) -> (B, S, DIM); turn: see `turns`."""
        heads = self.project(x).unflatten(-1, (-1, HEAD_DIM))  # (B, S, H + 2 Hk, D)
        q, k, v = heads.split([HEADS, HEADS_KV, HEADS_KV], dim=2)
        q, k = rotate(q, turn), rotate(k, turn)
        shared = (x.expand(-1, -1, HEADS, -1) for x in (k, v))  # enable_gqa is ten times slower on a CPU
        out = functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, *shared)), is_causal=True
        ).transpose(1, 2)
        self.kept = q, k, v, out
        return self.back(out.flatten(2))


class Layer(nn.Module):
    """Attention and SwiGLU, each on a normalised input and added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norms = nn.ModuleList([nn.RMSNorm(DIM), nn.RMSNorm(DIM)])
        self.gate, self.up = (nn.Linear(DIM, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """(B, S, DIM) -> (B, S, DIM)."""
        x = x + self.attention(self.norms[0](x), turn)
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """Bytes to logits of the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, DIM)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(DIM)
        self.register_buffer("turn", turns(), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """(B, S) -> (B, S, 256)."""
        x = self.embedding(text)
        for layer in self.layers:
            x = layer(x, self.turn)
        return functional.linear(self.norm(x), self.embedding.weight)


def turns() -> Tensor:
    """RoPE (Su et al. 2021, arXiv 2104.09864): complex (S, 1, D/2)."""
    rates = 10000.0 ** (-torch.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    angles = torch.arange(SEQLEN)[:, None, None] * rates
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """(B, S, heads, D) turned by position, pairs of neighbouring dims."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)


def corpus() -> tuple[Tensor, Tensor, str]:
    """Bytes to train on, bytes held out, and the digest of both."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = {path.name: path.read_bytes() for path in sorted(folder.glob("*.py"))}
    held_out = texts.pop(HELD_OUT)
    every = b"".join(texts.values())
    digest = hashlib.sha256(every + held_out).hexdigest()[:16]
    first, second = (torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in (every, held_out))
    return first, second[: SEQLEN + 1], digest


def loss_of(model: Model, text: Tensor) -> Tensor:
    """Mean over tokens, in nats a byte. text: (B, S + 1)."""
    return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def train(model: Model, text: Tensor, steps: int) -> None:
    """AdamW, a rate that rises and then falls as a cosine."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=min(0.3, WARMUP / steps))
    for step in range(steps):
        begin = torch.randint(len(text) - SEQLEN - 1, (BATCH, 1))
        loss = loss_of(model, text[begin + torch.arange(SEQLEN + 1)])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.3f} nats a byte", flush=True)


def capture(model: Model, text: Tensor) -> dict[str, Tensor]:
    """layer_NUMBER.q, .k, .v, .dout, each (1, S, heads, D) in bfloat16, whose range the gradients need."""
    loss = loss_of(model, text[None]) * SEQLEN
    kept = {layer: model.layers[layer].attention.kept for layer in CAPTURED}
    gradients = torch.autograd.grad(loss, [out for *_, out in kept.values()])
    found = {}
    for (layer, (q, k, v, _)), dout in zip(kept.items(), gradients, strict=True):
        found |= {f"layer_{layer}.{name}": x for name, x in (("q", q), ("k", k), ("v", v), ("dout", dout))}
    return {name: x.detach().bfloat16().contiguous() for name, x in found.items()}


def main(path: str, steps: int = STEPS) -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # sums in one order
    text, held_out, digest = corpus()
    model: Any = Model()
    with torch.no_grad():
        before = loss_of(model, held_out[None]).item()
    train(model, text, steps)
    tensors = capture(model, held_out)
    after = loss_of(model, held_out[None]).item()
    about = {
        "about": "a byte-level language model trained by experiments/inputs_that_matter/train.py",
        "text": f"standard library of Python {platform.python_version()} (sha256 {digest}), held out: {HELD_OUT}",
        "loss": f"{before:.3f} nats a byte of held-out text before, {after:.3f} after {steps} steps",
        "versions": f"torch {torch.__version__}, seed {SEED}",
    }
    save_file(tensors, path, metadata=about)
    print("\n".join(f"{key}: {value}" for key, value in about.items()))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
