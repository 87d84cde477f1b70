"""Does a model train otherwise where a ring rounds its sums?

`python -m experiments.training_effect SIZE CSV [FIRST_SEED LAST_SEED [WAY ...]]`

The same model on the same bytes in the same order, once for each seed and each way of attention (`WAYS`). A row for
each step: the loss and the norm of the whole gradient; then `held-out loss`, on bytes that were not trained on, and
for each way `gradient error`, of the gradient on these bytes from that with exact attention, with the weights after
training.
"""

import csv
import math
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from accuracy.core.paths import PACKAGE
from accuracy.runtime import arithmetic
from accuracy.simulate.program import build_kernel
from experiments.depth import plan
from experiments.depth.attention import Attention, Exact, Ranks, known_to_autograd
from experiments.depth.layers import block, loss_of, rounding

SUMS = ("out_accumulator", "dq_accumulator", "dkv_accumulator", "gradient_wire")
WAYS = {
    "one device": ("variant=single_device", "world_size=1"),
    "ring, float32 sums": ("variant=te_p2p", "world_size=16", *(f"precision.{each}=accumulate" for each in SUMS)),
    "te_p2p": ("variant=te_p2p", "world_size=16"),
}
Weights = dict[str, Tensor]
"""`embedding` (256, E), `head` (E, 256), `norm` (E), and `LAYER.NAME` as in `experiments.depth.layers`."""
COLUMNS = ("size", "seed", "way", "step", "what", "value")


class Size(NamedTuple):
    """tokens of a step; heads of head_dim, together the model's width; processes side by side; rate of learning."""

    device: str
    kernel: str
    layers: int
    tokens: int
    heads: int
    head_dim: int
    steps: int
    processes: int
    rate: float


def joined(files: Iterable[Path]) -> Tensor:
    """uint8: the content of files, one after another."""
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)


def beginning(layers: int, heads: int, heads_kv: int, head_dim: int, device: str) -> Weights:
    """Return the weights before training: variance 1 / fan-in, less for what joins the residual stream."""
    width, keys = heads * head_dim, heads_kv * head_dim
    shapes = {"query": (width, width), "key": (width, keys), "value": (width, keys), "output": (width, width)}
    shapes |= {"gate": (width, 4 * width), "up": (width, 4 * width), "down": (4 * width, width)}
    weights = {"embedding": torch.randn(256, width), "head": torch.randn(width, 256) / width**0.5}
    weights["norm"] = torch.ones(width)
    for layer, (name, shape) in product(range(layers), shapes.items()):
        less = math.sqrt(2 * layers) if name in ("output", "down") else 1.0
        weights[f"{layer}.{name}"] = torch.randn(shape) / shape[0] ** 0.5 / less
    for layer, name in product(range(layers), ("attention_norm", "feed_forward_norm")):
        weights[f"{layer}.{name}"] = torch.ones(width)
    return {name: x.to(device).requires_grad_() for name, x in weights.items()}


def loss(weights: Weights, words: Tensor, attention: Attention, head_dim: int) -> Tensor:
    """Return the mean loss, in nats a byte, of predicting each byte of words (B, S + 1) from those before it."""
    x = weights["embedding"][words[:, :-1]]
    for layer in range(sum(name.endswith(".query") for name in weights)):
        own = {name.partition(".")[2]: x for name, x in weights.items() if name.startswith(f"{layer}.")}
        x = block(x, own, attention, head_dim)
    return loss_of(x, weights["norm"], weights["head"], words[:, 1:])


def gradient(weights: Weights, words: Tensor, attention: Attention, head_dim: int) -> Tensor:
    """Return the gradient of the loss by all weights, as one vector."""
    found = torch.autograd.grad(loss(weights, words, attention, head_dim), list(weights.values()))
    return torch.cat([x.flatten() for x in found])


SIZES = {
    "small": Size("cpu", "eager", 2, 512, 4, 32, 300, 2, 3e-3),
    "gpu": Size("cuda", "flash_attn", 4, 4096, 8, 64, 300, 5, 1e-3),
}


def attention_of(size: Size, way: str) -> Attention:
    """In bfloat16, amid float32; `exact`: the float64 reference."""
    words = [f"{key}={getattr(size, key)}" for key in ("kernel", "device")]
    shape = {"seqlen": size.tokens, "heads": size.heads, "heads_kv": size.heads, "head_dim": size.head_dim}
    words += ["dtype=bfloat16", *(f"problem.{key}={value}" for key, value in shape.items())]
    _, (planned, *_) = plan.planned(plan.composed(["experiment=stack", *words, *WAYS.get(way, WAYS["one device"])]))
    if planned.unsupported:
        raise SystemExit(planned.unsupported)
    halves = Exact(planned.case) if way == "exact" else Ranks(planned.case, build_kernel(planned.case))
    return rounding(known_to_autograd(halves), torch.bfloat16, torch.float32)


def trained(name: str, seed: int, way: str) -> list[tuple[object, ...]]:
    size, rows = SIZES[name], []
    arithmetic.make_exact()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    everything = joined(sorted(Path(PACKAGE).rglob("*.py"))).to(size.device)
    attention = attention_of(size, way)
    weights = beginning(size.layers, size.heads, size.heads, size.head_dim, size.device)
    part = len(everything) // 20
    kept, training = everything[:part].long(), everything[part:].long()
    optimizer = torch.optim.AdamW(weights.values(), lr=size.rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))
    for step in range(size.steps):
        start = int(torch.randint(len(training) - size.tokens - 1, ()))
        found = loss(weights, training[None, start : start + size.tokens + 1], attention, size.head_dim)
        optimizer.zero_grad()
        found.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        warm.step()
        rows += [(name, seed, way, step, "loss", found.item()), (name, seed, way, step, "gradient norm", norm.item())]
    texts = kept[: len(kept) // (size.tokens + 1) * (size.tokens + 1)].view(-1, 1, size.tokens + 1)[:32]
    with torch.no_grad():
        one = attention_of(size, "one device")
        held = sum(loss(weights, words, one, size.head_dim).item() for words in texts) / len(texts)
    rows.append((name, seed, way, size.steps, "held-out loss", held))
    if way == "one device":
        exact = gradient(weights, texts[0], attention_of(size, "exact"), size.head_dim)
        for each in WAYS:
            off = gradient(weights, texts[0], attention_of(size, each), size.head_dim) - exact
            rows.append((name, seed, each, size.steps, "gradient error", (off.norm() / exact.norm()).item()))
    return rows


def main(name: str, path: str, first: str = "0", last: str = "4", *ways: str) -> None:
    size, runs = SIZES[name], list(product(range(int(first), int(last) + 1), ways or WAYS))
    with (
        ProcessPoolExecutor(size.processes, get_context("spawn")) as pool,
        open(path, "w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for found in pool.map(trained, [name] * len(runs), *zip(*runs, strict=True)):
            writer.writerows((*row, f"{value:.9g}") for *row, value in found)
            print(*found[-1], flush=True)
