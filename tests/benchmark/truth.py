"""How much does the truth cost: memory above inputs and outputs, and speed beside a plain float64 product?"""

import time
from collections.abc import Callable, Iterator

import torch

from accuracy.reference.float64 import attention


def lines(device: str) -> Iterator[str]:
    length = 32768 if device == "cuda" else 2048
    q, k, v, dout = (torch.randn(1, length, 8, 128, dtype=torch.bfloat16, device=device) for _ in range(4))

    def run() -> None:
        attention(q, k, v, dout, scale=0.088, causal=True)

    seconds = best(run, device)
    product = rate(device)
    operations = 6 * length**2 * 128 * 8  # six products of 2 S^2 D each, half of it visible
    speed = operations / seconds
    yield f"truth, forward and backward, S={length} H=8 D=128: {seconds:.2f} s, {speed / 1e12:.3f} TFLOP/s in float64"
    yield f"  a plain float64 product here: {product / 1e12:.3f} TFLOP/s; ratio {speed / product:.2f}"
    if device == "cuda":
        yield f"  memory above inputs and outputs: {extra_memory(run, q):.2f} GiB; target <= 4"
    yield ""


def best(run: Callable[[], None], device: str, repeats: int = 3) -> float:
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


def extra_memory(run: Callable[[], None], q: torch.Tensor) -> float:
    """GiB; the outputs are out, dq, dk, dv, lse and delta in float64."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    outputs = 4 * q.numel() * 8 + 2 * q.numel() // q.shape[-1] * 8
    return (torch.cuda.max_memory_allocated() - before - outputs) / 2**30
