"""How much does the reference cost: speed beside a plain float64 product, and memory above inputs and outputs?

Its work is six products of 2 S^2 D operations each, half of them visible.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from accuracy.reference import float64

SCALE, HEADS, DIM = 0.088, 8, 128


def lines(device: str) -> Iterator[str]:
    length = 32768 if device == "cuda" else 2048
    tensors = draw(length, HEADS, device)
    product = rate(device)
    yield f"reference, S={length} H={HEADS} D={DIM}, causal; a plain float64 product here: {product / 1e12:.3f} TFLOP/s"
    seconds = best(lambda: reference(tensors), device)
    speed = 6 * length**2 * DIM * HEADS / seconds
    yield f"  forward and backward: {seconds:.3f} s, {speed / 1e12:.3f} TFLOP/s, ratio {speed / product:.2f}"
    if device == "cuda":
        yield f"  memory above inputs and outputs: {extra_memory(tensors):.2f} GiB; target <= 4"
    yield ""


def draw(length: int, heads: int, device: str) -> list[Tensor]:
    return [torch.randn(1, length, heads, DIM, dtype=torch.bfloat16, device=device) for _ in range(4)]


def reference(tensors: list[Tensor]) -> float64.Reference:
    return float64.attention(*tensors, scale=SCALE, causal=True)


def best(run: Callable[[], object], device: str, repeats: int = 3) -> float:
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def rate(device: str) -> float:
    size = 8192 if device == "cuda" else 1024
    a, b = (torch.randn(size, size, dtype=torch.float64, device=device) for _ in range(2))
    return 2 * size**3 / best(lambda: torch.mm(a, b), device, 5)


def extra_memory(tensors: list[Tensor]) -> float:
    """GiB; the outputs are out, dq, dk, dv, lse and delta in float64."""
    q = tensors[0]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    reference(tensors)
    outputs = 4 * q.numel() * 8 + 2 * q.numel() // q.shape[-1] * 8
    return (torch.cuda.max_memory_allocated() - before - outputs) / 2**30
