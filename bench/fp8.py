"""How fast is FP8 attention beside flash-attn 2 in bfloat16? By hand, on a Hopper GPU: `python -m bench.fp8`.

Each line: ms and the rate over flash-attn's in the same run, above 1 faster. Targets on an H200 at S = 8,192, H = 32,
D = 128: the Triton FP8 forward at least 1.6 with a full mask and 1.4 causal, without what is timed apart: the casts of
q, k and v, and v's transposed copy. Accumulators: never flushed, flushed every 128 terms (two levels), after each
instruction.

What it printed on an H200 is reports/benchmark/nvidia-h200/fp8.txt: 2.32 and 2.48 times with 128 keys a tile, never
flushed or flushed every 128 terms; 64 keys a tile have 2.10 and 2.35 times never flushed, 1.40 and 1.59 flushed.
"""

import importlib.util
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from accuracy.core import plugins
from accuracy.core.paths import EXPERIMENTS
from accuracy.core.quantisation import POLICIES
from accuracy.kernel.lowp import cudnn_fp8
from accuracy.kernel.lowp.operand import Operand, cast
from accuracy.runtime import device

KERNELS = EXPERIMENTS / "fp8_fit/kernel"
KERNEL = plugins.load(str(KERNELS / "triton_fp8.py")).KERNEL
LENGTH, HEADS, DIM = 8192, 32, 128
SCALE = DIM**-0.5
REPEATS = 20
TILES = (("fp8_hopper", 64), ("fp8_hopper", 128), ("fp8_hopper_flush", 64), ("fp8_hopper_flush", 128),
         ("fp8_tensor", 64), ("fp8_tensor", 128), ("fp8_block", 64))  # fmt: skip


def drawn() -> list[Tensor]:
    """q, k, v (1, S, H, D) in bfloat16."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (1, LENGTH, HEADS, DIM)
    return [torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Any:
    from flash_attn import flash_attn_func

    return flash_attn_func(q, k, v, softmax_scale=SCALE, causal=causal)


def triton_runs(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    attend = plugins.load(str(KERNELS / "_fp8_forward.py")).attend

    for name, key_chunk in TILES:
        policy = KERNEL(policy=name, key_chunk=key_chunk).resolved()
        operands = [cast(x, word, policy) for x, word in ((q, policy.q), (k, policy.k), (v, policy.v))]
        _ = operands[2].interleaved  # kept: it is timed apart
        how = {"scale": SCALE, "causal": causal, "out_dtype": torch.bfloat16}
        yield f"triton_fp8 {name}, {key_chunk} keys a tile", partial(attend, *operands, policy, key_chunk, **how)


def cudnn_run(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Any]:
    """The graph alone, with scales at hand."""
    policy = POLICIES["cudnn_e4m3"]
    operands, given = cudnn_fp8._operands({"q": q, "k": k, "v": v}, policy)
    given |= {"scale_s": policy.p_prescale, "descale_s": 1 / policy.p_prescale, "scale_o": 1.0}
    pack = operands | {name: torch.full(cudnn_fp8.SCALARS, x, device="cuda") for name, x in given.items()}
    graph, inputs, outputs = cudnn_fp8._forward_graph(
        tuple(tuple(x.shape) for x in operands.values()), "e4m3", SCALE, causal
    )
    out = torch.empty_like(operands["q"])
    lse = out.new_empty(*out.shape[:3], 1, dtype=torch.float32)
    results = [out, lse, *(lse.new_zeros(cudnn_fp8.SCALARS) for _ in range(2))]
    return lambda: cudnn_fp8._execute(graph, inputs, pack, outputs, results)


def apart(q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What comes before the kernel."""
    policy = POLICIES["fp8_hopper_flush"]
    yield "casts of q, k and v", lambda: [cast(x, "e4m3", policy) for x in (q, k, v)]
    low = cast(v, "e4m3", policy)
    yield "v's transposed copy", lambda: Operand(low.codes, low.scales, low.tokens).interleaved


def milliseconds(call: Callable[[], Any]) -> float:
    """The median of several calls in one queue, which hides what the CPU does before each."""
    for _ in range(3):
        call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(last) for first, last in pairwise(events))


def main() -> None:
    q, k, v = drawn()
    print(f"{device.name('cuda')}: S = {LENGTH:,}, H = {HEADS}, D = {DIM}")
    for causal in (False, True):
        usual = milliseconds(lambda causal=causal: flash(q, k, v, causal))
        work = 4 * LENGTH**2 * HEADS * DIM / (2 if causal else 1)
        runs = [("flash-attn 2 bfloat16", partial(flash, q, k, v, causal)), *triton_runs(q, k, v, causal)]
        if importlib.util.find_spec("cudnn"):
            runs.append(("cuDNN e4m3", cudnn_run(q, k, v, causal)))
        print("causal" if causal else "full mask")
        for name, run in runs:
            taken = milliseconds(run)
            print(f"  {name:45s} {taken:7.3f} ms {work / taken / 1e9:7.0f} TFLOP/s {usual / taken:5.2f}")
    for name, run in apart(q, k, v):
        print(f"  {name:45s} {milliseconds(run):7.3f} ms")


if __name__ == "__main__":
    main()
