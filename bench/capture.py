"""What does a captured step cost? Its time above a step's, and so the mean step time where one in 100 is captured.

A layer of Llama-8B's heads at 8,192 tokens holds 335 MB: q, out, dout and dq of 32 heads, k, v, dk and dv of 8.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import accuracy

DIM, LAYERS = 128, 4
TARGET = 0.01
STEPS = 10


class Layer(nn.Module):
    def __init__(self, heads: int, heads_kv: int) -> None:
        super().__init__()
        width, self.heads = heads * DIM, (heads, heads_kv, heads_kv)
        self.into = nn.Linear(width, sum(self.heads) * DIM, bias=False)
        self.back = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(x).unflatten(-1, (-1, DIM)).transpose(1, 2).split(self.heads, 1)
        out = scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        x = x + self.back(out.transpose(1, 2).flatten(2))
        return x + self.down(self.up(x).relu())


def lines(device: str) -> Iterator[str]:
    length, heads, heads_kv = (8192, 32, 8) if device == "cuda" else (256, 4, 1)
    model = nn.Sequential(*(Layer(heads, heads_kv) for _ in range(LAYERS))).to(device, torch.bfloat16)
    x = torch.randn(1, length, heads * DIM, device=device, dtype=torch.bfloat16)

    def step() -> None:
        model(x).square().mean().backward()

    def captured() -> float:
        with tempfile.TemporaryDirectory() as folder:
            watched = accuracy.capture(model, folder, layers="0")
            seconds = _seconds(lambda: _in(watched, step), device)
            watched.wait()
        return seconds

    step(), captured()
    plain, more = (median(each() for _ in range(STEPS)) for each in (lambda: _seconds(step, device), captured))
    above = f"{(more - plain) * 1e3:.1f} ms above a step of {plain * 1e3:.1f} ms"
    yield f"capture of one of {LAYERS} layers, {length} tokens: {above}"
    yield f"  mean step time, one step in 100: {(more / plain - 1) / 100:+.2%}; target <= {TARGET:+.0%}"
    yield ""


def _in(watched: accuracy.capture, step: Callable[[], None]) -> None:
    with watched:
        step()


def _seconds(step: Callable[[], None], device: str) -> float:
    begin = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin
