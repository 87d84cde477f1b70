"""How far is a ring from float64 on the attention of a model that trains, and on inputs made like published models'?

`python -m experiments.trained_attention FOLDER [SIZE [SEEDS]]`

A byte-level model learns Python's standard library; q, k, v and dout of every layer are captured at some of its steps,
on text that it does not train on. Beside them stand inputs that are made (`MADE`). Out: FOLDER/SIZE.csv.gz, written
after each seed. A row for each inputs, schedule, number of ranks and tensor (`errors.columns`), and one without a
schedule for what the inputs are like (`errors.facts`).
"""

import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.config.resolve import compose, keys_of, resolved
from accuracy.core.case import Case
from accuracy.execute.plan import plan
from accuracy.execute.settle import read_settled
from accuracy.inputs import distributions
from accuracy.inputs.drawing import NAMES, Inputs
from accuracy.runtime import arithmetic
from experiments.depth.layers import rounding
from experiments.trained_attention import errors
from experiments.training_effect.model import Weights, beginning, joined, loss

VARIANTS = ("ring", "zigzag", "llama3", "te_p2p")
HELD_OUT = {"email", "html", "http", "logging", "unittest", "xml"}  # whole packages, so that no near-copy is trained on
LEFT_OUT = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "encodings", "pydoc_data"}
Captured = dict[str, Any]


class Size(NamedTuple):
    """A model: batch of sequences of tokens a step. captured: steps before which attention is captured; the last one is
    after training. worlds: numbers of ranks; kernels: the first one that is here is used."""

    device: str
    kernels: str
    layers: int
    heads: int
    heads_kv: int
    head_dim: int
    tokens: int
    batch: int
    rate: float
    captured: tuple[int, ...]
    worlds: tuple[int, ...]
    seeds: int


SIZES = {
    "gpu": Size("cuda", "flash_attn,torch_flash", 4, 4, 2, 64, 4096, 4, 2e-3, (0, 100, 1000), (4, 16, 64), 5),
    "cpu": Size("cpu", "eager", 2, 4, 2, 32, 512, 4, 3e-3, (0, 30, 300), (4, 16), 3),
    "tiny": Size("cpu", "eager", 1, 2, 1, 16, 64, 2, 3e-3, (0, 2), (2, 4), 2),
}


def sink_and_channels(generator: np.random.Generator, shape: tuple[int, ...], tensor: str) -> np.ndarray:
    """Draw a sink on the first token, as `attention_sink`, over keys as `heavy_channels`: published models have both at
    once (Sun et al. 2024, arXiv 2402.17762; Liu et al. 2024, arXiv 2402.02750)."""
    if tensor != "k":
        return distributions.attention_sink(generator, shape, tensor)
    values = distributions.heavy_channels(generator, shape, tensor)
    values -= values.mean(axis=3, keepdims=True)  # no key but the sink's has a part in its direction
    values[:, 0] = 1.0
    return values


MADE = {
    "Gaussian": distributions.gaussian,
    "sink": distributions.attention_sink,
    "heavy channels": distributions.heavy_channels,
    "sink, heavy channels": sink_and_channels,
    "outliers": distributions.outliers,
}


def cases(size: Size) -> list[Case]:
    """Of the kernel run once on all tokens, and of each schedule on each number of ranks."""
    shape = {
        "batch": 1,
        "seqlen": size.tokens,
        **{key: getattr(size, key) for key in ("heads", "heads_kv", "head_dim")},
    }
    words = [f"variant=[single_device,{','.join(VARIANTS)}]", f"world_size={[1, *size.worlds]}".replace(" ", "")]
    words += [f"kernel.auto.candidates=[{size.kernels}]", f"device={size.device}", "dtype=bfloat16"]
    words += [f"problem.{key}={value}" for key, value in shape.items()]
    plans = plan(read_settled(resolved(compose(*words), keys_of(words))), None)
    wanted = [each for each in plans if (each.case.variant.name == "single_device") == (each.case.world_size == 1)]
    if reasons := {each.unsupported for each in wanted if each.unsupported}:
        raise SystemExit("\n".join(reasons))
    return [each.case for each in wanted]


def corpus() -> tuple[Tensor, Tensor]:
    """Return bytes to train on, and to look at: Python's standard library without its tests and character tables."""
    library = Path(sysconfig.get_paths()["stdlib"])
    folders = {path: {*path.relative_to(library).parts} for path in sorted(library.rglob("*.py"))}
    files = [path for path, names in folders.items() if not LEFT_OUT & names]
    kept = [path for path in files if HELD_OUT & folders[path]]
    return joined(path for path in files if path not in {*kept}), joined(kept)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's causal attention, (B, S, heads, D)."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)


def capture(weights: Weights, words: Tensor, head_dim: int) -> tuple[float, list[Inputs]]:
    """Return the mean loss of words (1, S + 1), and each layer's q, k, v and dout, of the loss summed over tokens."""
    calls = []

    def watched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = plain(q, k, v)
        out.retain_grad()
        calls.append((q, k, v, out))
        return out

    found = loss(weights, words, rounding(watched, torch.bfloat16, torch.float32), head_dim)
    torch.autograd.backward(found * (words.shape[1] - 1), inputs=[each[3] for each in calls])
    return found.item(), [Inputs(q.detach(), k.detach(), v.detach(), out.grad.contiguous()) for q, k, v, out in calls]


def training(size: Size, seed: int) -> Iterator[tuple[Captured, Inputs]]:
    """Train a model; yield what attention has at the steps to be captured, layer after layer."""
    torch.manual_seed(seed)
    text, kept = (x.to(size.device).long() for x in corpus())
    weights = beginning(size.layers, size.heads, size.heads_kv, size.head_dim, size.device)
    place, last = torch.arange(size.tokens + 1, device=size.device), max(size.captured)
    windows = kept[torch.randint(len(kept) - size.tokens - 1, (size.layers, 1)).to(size.device) + place]
    optimizer = torch.optim.AdamW(weights.values(), lr=size.rate, betas=(0.9, 0.95), weight_decay=0.1)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50) * (1 - step / last))
    attention = rounding(plain, torch.bfloat16, torch.float32)
    for step in range(last + 1):
        if step in size.captured:
            losses, layers = zip(*(capture(weights, words[None], size.head_dim) for words in windows), strict=True)
            held_out = sum(losses) / len(losses)
            for layer, of_window in enumerate(layers):  # each layer's attention on another window
                yield {"inputs": "trained", "step": step, "layer": layer + 1, "loss": held_out}, of_window[layer]
        if step == last:
            break
        begin = torch.randint(len(text) - size.tokens - 1, (size.batch, 1)).to(size.device)
        optimizer.zero_grad()
        loss(weights, text[begin + place], attention, size.head_dim).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        rate.step()


def made(size: Size, seed: int) -> Iterator[tuple[Captured, Inputs]]:
    """Yield what is drawn."""
    for name, draw in MADE.items():
        drawn = []
        for number, tensor in enumerate(NAMES):
            shape = (1, size.tokens, size.heads_kv if tensor in "kv" else size.heads, size.head_dim)
            values = draw(np.random.default_rng([seed, number]), shape, tensor)
            drawn.append(torch.from_numpy(values).to(size.device, torch.bfloat16))
        yield {"inputs": name, "step": -1, "layer": 0}, Inputs(*drawn)


def measured(planned: list[Case], inputs: Inputs) -> Iterator[dict[str, Any]]:
    """Yield a row for what the inputs are like, and for each schedule, number of ranks and tensor."""
    alone, *schedules = planned
    yield {"variant": "", "world_size": 0, "tensor": "", **errors.facts(inputs, alone.problem.softmax_scale)}
    reference, one = errors.exact(alone, inputs), errors.computed(alone, inputs)
    for case in schedules:
        found = errors.computed(case, inputs)
        about = {"variant": case.variant.name, "world_size": case.world_size, "kernel": case.kernel.name}
        for tensor in errors.TENSORS:
            numbers = errors.columns(case, found[tensor], one[tensor], reference[tensor])
            yield {**about, "tensor": tensor, **numbers}


def main(folder: str, name: str = "gpu", seeds: str = "") -> None:
    size, rows = SIZES[name], []
    arithmetic.make_exact()
    planned, path = sorted(cases(size), key=lambda case: case.world_size), Path(folder) / f"{name}.csv.gz"
    device = torch.cuda.get_device_name() if size.device == "cuda" else "CPU"
    about = {"device": device, "python": ".".join(map(str, sys.version_info[:3])), "torch": torch.__version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    for seed in range(int(seeds or size.seeds)):
        for source in (made, training):
            for captured, inputs in source(size, seed):
                rows += [{"seed": seed, **captured, **row, **about} for row in measured(planned, inputs)]
            print(f"seed {seed}, {source.__name__}: {time.perf_counter() - begin:.0f} s", flush=True)
        last = next(row["loss"] for row in reversed(rows) if "loss" in row)
        pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g", compression={"method": "gzip", "mtime": 0})
        print(f"seed {seed}: {last:.3f} nats a byte of text that was not trained on; {len(rows)} rows", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
