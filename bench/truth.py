"""How much does the reference cost: speed beside a plain float64 product, and memory above inputs and outputs?

Two counts of its work: six products of 2 S^2 D operations each are what the definition asks for, and what the torch
reference does; seven, the customary count, are what the fused one does, which computes the scores again.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from accuracy.reference import float64
from accuracy.reference.fused import Intervals, Planes

SCALE, HEADS, DIM = 0.088, 8, 128
FORWARD_TARGET, BOTH_TARGET = 0.70, 0.60
MILLION = 2**20


def lines(device: str) -> Iterator[str]:
    fused = device == "cuda" and importlib.util.find_spec("triton") is not None
    length = 32768 if device == "cuda" else 2048
    tensors = draw(length, HEADS, device)
    product = rate(device)
    yield f"reference, S={length} H={HEADS} D={DIM}, causal; a plain float64 product here: {product / 1e12:.3f} TFLOP/s"
    work = length**2 * DIM * HEADS  # of one product, half of it visible
    yield line("torch, forward and backward", best(lambda: both(float64, tensors), device), work, 6, product)
    if fused:
        yield from fused_lines(tensors, work, product)
        yield from million(product)
    if device == "cuda":
        yield f"  memory above inputs and outputs, torch: {extra_memory(float64, tensors):.2f} GiB; target <= 4"
    yield ""


def fused_lines(tensors: list[Tensor], work: int, product: float) -> Iterator[str]:
    from accuracy.reference import fused

    yield line("fused, forward", best(lambda: forward(tensors), "cuda"), work, 2, product, FORWARD_TARGET)
    seconds = best(lambda: both(fused, tensors), "cuda")
    yield line("fused, forward and backward", seconds, work, 7, product, BOTH_TARGET)
    yield line("  the same, six products counted", seconds, work, 6, product)
    yield f"  memory above inputs and outputs, fused: {extra_memory(fused, tensors):.2f} GiB"


def million(product: float) -> Iterator[str]:
    """One head of a million tokens."""
    from accuracy.reference import fused

    tensors = draw(MILLION, 1, "cuda")
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    both(fused, tensors)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated() / 2**30
    yield line(f"fused, forward and backward, S={MILLION} H=1", seconds, MILLION**2 * DIM, 7, product)
    yield f"  {seconds:.1f} s, {peak:.1f} GiB with inputs and results; targets <= 30 s, <= 12 GiB"


def draw(length: int, heads: int, device: str) -> list[Tensor]:
    return [torch.randn(1, length, heads, DIM, dtype=torch.bfloat16, device=device) for _ in range(4)]


def both(module, tensors: list[Tensor]):
    return module.attention(*tensors, scale=SCALE, causal=True)


def forward(tensors: list[Tensor]) -> None:
    """The fused forward alone, with the conversion of its inputs."""
    from accuracy.reference import fused

    q, k, v, dout = tensors
    seen = float64.seen_keys(q.shape[1], k.shape[1], True, False, None, ())
    intervals = Intervals.of(seen, q.shape[1], k.shape[1], q.device)
    group = fused.Group.of(q[0], k[0], v[0], dout[0], scale=SCALE, intervals=intervals)
    fused.forward(Planes.empty(q, k).of(0, slice(None), slice(None)), group)


def line(name: str, seconds: float, work: int, products: int, product: float, target: float | None = None) -> str:
    speed = products * work / seconds
    wanted = f"; target >= {target:.2f}" if target else ""
    return f"  {name}: {seconds:.3f} s, {speed / 1e12:.3f} TFLOP/s, ratio {speed / product:.2f}{wanted}"


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


def extra_memory(module, tensors: list[Tensor]) -> float:
    """GiB; the outputs are out, dq, dk, dv, lse and delta in float64."""
    q = tensors[0]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    both(module, tensors)
    outputs = 4 * q.numel() * 8 + 2 * q.numel() // q.shape[-1] * 8
    return (torch.cuda.max_memory_allocated() - before - outputs) / 2**30
