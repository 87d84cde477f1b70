"""What do remedies for FP8 cost in milliseconds, and what do they gain? Real kernels on a Hopper GPU.

    python -m experiments.fp8_remedies.cost FOLDER

Times at 8,192 tokens and 32 heads of 128, full mask, bfloat16, casts and rotations of the inputs included; relative
errors of out, dq, dk and dv against float64 on the inputs as given, at 4,096 tokens and 4 heads. Written is
FOLDER/cost.csv, a row for each remedy and distribution; one without a time says why in `reason`.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from accuracy.inputs.distributions import PARTS, Distribution
from accuracy.kernel import cudnn_fp8, flash_attn, sage, triton_fp8
from accuracy.kernel.base import Kernel
from accuracy.reference.float64 import Reference, attention
from accuracy.runtime import arithmetic, device

DIM, TOKENS = 128, 128  # of a head, of a tile and of a block
FP8 = partial(triton_fp8.KERNEL, policy="fp8_hopper_flush", key_chunk=TOKENS)
BLOCKS = partial(triton_fp8.KERNEL, policy="fp8_block", key_chunk=TOKENS, block=TOKENS)
REMEDIES: dict[str, Callable[[], Kernel]] = {
    "bfloat16 (flash-attn 2)": flash_attn.KERNEL,
    "a scale a tensor": FP8,
    "no prescale": partial(FP8, p_prescale=1.0),
    "a scale a head": partial(FP8, granularity="head"),
    "blocks of 128 tokens": BLOCKS,
    "rotation": partial(FP8, hadamard=True),
    "blocks and rotation": partial(BLOCKS, hadamard=True),
    "e5m2 for gradients": partial(FP8, do="e5m2", ds="e5m2"),
    "float32 behind each instruction": partial(triton_fp8.KERNEL, policy="fp8_tensor", key_chunk=TOKENS),
    "cuDNN, a scale a tensor": cudnn_fp8.KERNEL,
    "int8 and smoothed k (SageAttention 1)": sage.KERNEL,
}
INPUTS: dict[str, Distribution] = {name: PARTS[name] for name in ("gaussian", "outliers")}
HOW: dict[str, Any] = {"scale": DIM**-0.5, "causal": False}
REPEATS = 10


@cache
def drawn(name: str, length: int, heads: int, where: str) -> tuple[list[Tensor], Reference]:
    """q, k, v, dout (1, S, H, D), and the float64 reference."""
    made, options = INPUTS[name].draw, INPUTS[name].Options()
    generator, kind = np.random.default_rng(0), torch.bfloat16 if where == "cuda" else torch.float32
    shape = (1, length, heads, DIM)
    q, k, v, dout = (
        torch.tensor(made(generator, shape, each, options), device=where).to(kind) for each in ("q", "k", "v", "dout")
    )
    return [q, k, v, dout], attention(q, k, v, dout, **HOW)


def milliseconds(call: Callable[[], Any], where: str) -> float:
    call()
    if where == "cuda":
        return statistics.median(device.between_events(call, REPEATS))
    with device.measured(where) as took:
        call()
    return 1000 * took.seconds


def times(kernel: Kernel, told: argparse.Namespace) -> dict[str, float]:
    """Forward, and forward with backward where there is one."""
    kind = torch.bfloat16 if told.device == "cuda" else torch.float32
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(1, told.length, told.heads, DIM, device=told.device, dtype=kind) for _ in range(4))

    def forward() -> Any:
        return kernel.forward(q, k, v, **HOW, out_dtype=q.dtype)

    def both() -> Any:
        out, lse = forward()
        return kernel.backward(dout, q, k, v, out, lse, **HOW, gradient_dtype=q.dtype)

    found = {"ms": milliseconds(forward, told.device)}
    return found if forward()[1] is None else found | {"ms_both": milliseconds(both, told.device)}


def errors(kernel: Kernel, tensors: list[Tensor], exact: Reference) -> dict[str, float]:
    q, k, v, dout = tensors
    out, lse = kernel.forward(q, k, v, **HOW, out_dtype=q.dtype)
    given = {"out": out}
    if lse is not None:
        gradients = kernel.backward(dout, q, k, v, out, lse, **HOW, gradient_dtype=q.dtype)
        given |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return {
        name: float((x.double() - getattr(exact, name)).norm() / getattr(exact, name).norm())
        for name, x in given.items()
    }


def measured(name: str, told: argparse.Namespace) -> list[dict[str, Any]]:
    row: dict[str, Any] = {"remedy": name}
    try:
        kernel = REMEDIES[name]()
        if missing := kernel.abilities(told.device).missing:
            return [row | {"reason": missing}]
        kernel = kernel.build(told.device)
        row |= times(kernel, told)
        size = told.length // 2, max(1, told.heads // 8), told.device
        return [row | {"inputs": inputs} | errors(kernel, *drawn(inputs, *size)) for inputs in INPUTS]
    except Exception as error:
        return [row | {"reason": " ".join(str(error).split())[:200]}]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", type=Path)
    words.add_argument("--device", default="cuda")
    words.add_argument("--length", type=int, default=8192)
    words.add_argument("--heads", type=int, default=32)
    told = words.parse_args()
    arithmetic.make_exact()
    told.folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name in REMEDIES:
        rows += (found := measured(name, told))
        pd.DataFrame(rows).to_csv(told.folder / "cost.csv", index=False, float_format="%.4g")
        print(*found, sep="\n", flush=True)


if __name__ == "__main__":
    main()
