"""Where does accuracy/stack/trained.pt come from? A small model, trained on the reference text that comes with Python.

`python experiments/depth/train.py` takes minutes.
Kept are the weights rounded to bfloat16, and the end of the text, which is not trained on."""

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.stack import weights as trained
from accuracy.stack.layers import block, loss_of

STEPS, BATCH, LENGTH, RATE, WARM_UP = 1500, 4, 256, 3e-3, 50
KEPT_TEXT = 2**15


def text() -> Tensor:
    """uint8: the topics of Python's help, one after another."""
    from pydoc_data.topics import topics

    joined = "\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(joined.encode()), dtype=torch.uint8)


def beginning() -> dict[str, Tensor]:
    """Weights before training: variance 1 / fan-in, what joins the residual stream smaller by sqrt(2 L)."""
    shape, layers = trained.SHAPE, trained.LAYERS
    width, hidden, across = shape["width"], shape["feed_forward"], shape["heads"] * shape["head_dim"]
    across_kv = shape["heads_kv"] * shape["head_dim"]
    sizes = {
        "query": (width, across), "key": (width, across_kv), "value": (width, across_kv), "output": (across, width),
        "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width),
    }  # fmt: skip
    drawn = {f"layers.{name}": torch.randn(layers, *size) / math.sqrt(size[0]) for name, size in sizes.items()}
    for name in ("layers.output", "layers.down"):
        drawn[name] /= math.sqrt(2 * layers)
    norms = {f"layers.{name}": torch.ones(layers, width) for name in ("attention_norm", "feed_forward_norm")}
    return {
        **drawn, **norms, "embedding": torch.randn(shape["vocabulary"], width),
        "head": torch.randn(width, shape["vocabulary"]) / math.sqrt(width), "norm": torch.ones(width),
    }  # fmt: skip


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, by torch."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def loss(weights: dict[str, Tensor], words: Tensor) -> Tensor:
    """Of words (B, S + 1)."""
    x = weights["embedding"][words[:, :-1]]
    for index in range(trained.LAYERS):
        layer = {name.removeprefix("layers."): x[index] for name, x in weights.items() if name.startswith("layers.")}
        x = block(x, layer, attention, trained.SHAPE["head_dim"])
    return loss_of(x, weights["norm"], weights["head"], words[:, 1:])


def rate(step: int) -> float:
    """Linear warm-up, then a cosine to a tenth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))


def main() -> None:
    """Train, print the loss, write the file."""
    torch.manual_seed(0)
    everything = text()
    training, kept = everything[:-KEPT_TEXT], everything[-KEPT_TEXT:]
    weights = {name: x.requires_grad_() for name, x in beginning().items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(STEPS):
        starts = torch.randint(len(training) - LENGTH - 1, (BATCH,))
        found = loss(weights, torch.stack([training[start : start + LENGTH + 1].long() for start in starts]))
        optimizer.zero_grad()
        found.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step}: {found.item():.3f} nats a byte", flush=True)
    rounded = {name: x.detach().bfloat16() for name, x in weights.items()}
    torch.save({**rounded, "text": kept.clone()}, trained.FILE)
    print(f'DIGEST = "{hashlib.sha256(trained.FILE.read_bytes()).hexdigest()}"')
    with torch.no_grad():
        held = loss({name: x.float() for name, x in rounded.items()}, kept[: 8 * 257].view(8, 257).long())
    print(f"text kept from the training: {held.item():.3f} nats a byte")


if __name__ == "__main__":
    main()
