"""Are torch_efficient's float32 scores three products in TF32, added by a tensor core that cuts off? The lse of each.

    python experiments/tolerances/three_tf32.py FILE [cpu|cuda]

A row for each of the distributions: of torch_efficient (on cuda) and of its emulation, the elements of lse beyond the
bound that 1 in 10^6 may exceed, where products are taken to be summed in float32 and where they are taken to be split;
their mean error in units of 2^-24 |lse|; how many elements of the two are equal to the bit, and how many where a query
has one key, so that lse is a score (softmax rounds elsewhere in the two). Settings: sweep.py's.

torch 2.11, aten/src/ATen/native/transformers/cuda/mem_eff_attention: gemm_kernel_utils.h (OpMultiplyAddFastF32),
gemm/custom_mma_multistage.h (a sum of its own for 32 terms), kernel_forward.h (softmax and lse in base 2). CUTLASS
include/cutlass/gemm/warp/mma_tensor_op_fast_f32.h: small x big, big x small, big x big; big is cut off to 11 bits.
"""

import math
import sys
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.core import plugins
from accuracy.core.case import Problem
from accuracy.inputs import drawing
from accuracy.kernel.torch_efficient import KERNEL
from accuracy.reference.float64 import attention
from accuracy.runtime.arithmetic import make_exact

PROBLEM, SEEDS, CHANCE = Problem(1, 256, 4, 4, 64, "causal", 64**-0.5), 4, 1e-6
HOW = {"scale": PROBLEM.softmax_scale, "causal": True}
NAMES = ("rising_maxima", "gaussian", "uniform", "outliers", "attention_sink")
STEP, STAGE = 8, 32  # terms of one instruction (16 x 8 x 8); of one loop over the shared memory
EXTRA_BITS = 2  # that Hopper's tensor core keeps behind the 24 of float32 when it aligns what it adds
LOG2E = torch.tensor(1.4426950408889634, dtype=torch.float32)


def product(q: Tensor, k: Tensor, kept: Tensor | None = None) -> Tensor:
    """kept + q (M, D) times k (N, D) transposed, float32, as the kernel has it."""
    parts = [_split(x.contiguous()) for x in (q, k)]
    total = torch.zeros(len(q), len(k), device=q.device) if kept is None else kept
    mine = torch.zeros_like(total).double()
    for first in range(0, q.shape[1], STEP):
        here = slice(first, first + STEP)
        (q_big, q_small), (k_big, k_small) = (tuple(x[:, here].double() for x in each) for each in parts)
        for left, right in ((q_small, k_big), (q_big, k_small), (q_big, k_big)):
            mine = _instruction(mine, left, right)
        if first % STAGE == 0:
            total, mine = total + mine.float(), torch.zeros_like(mine)
    return total + mine.float()


def lse(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Causal, of one head: q (S, D), k (S, D)."""
    scores = product(q, k) * (torch.tensor(scale) * LOG2E).to(q.device)
    hidden = torch.ones(scores.shape, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(hidden, -math.inf)
    top = scores.amax(1, keepdim=True)
    return top[:, 0] / LOG2E.to(q.device) + torch.exp2(scores - top).sum(1).log()


def one_key(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """lse (S, H) of each query and the key of its place alone; q, k: (1, S, H, D)."""
    log2e = LOG2E.to(q.device)
    scores = [product(q[0, :, h], k[0, :, h]).diagonal() for h in range(q.shape[2])]
    return torch.stack(scores, 1) * (torch.tensor(scale, device=q.device) * log2e) / log2e


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    """Big: x without its last 13 bits; small: the rest, rounded to 11 bits."""
    big = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return big, (((x - big).view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _instruction(kept: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """kept + left right^T, float64: all that is added is aligned to the largest exponent and cut off, the sum too."""
    terms = torch.cat([kept[:, :, None], left[:, None] * right[None]], 2)
    exponents = torch.cat([_exponent(kept)[:, :, None], _exponent(left)[:, None] + _exponent(right)[None]], 2)
    unit = torch.exp2(exponents.amax(2, keepdim=True).clamp(min=-126.0) - 23 - EXTRA_BITS)
    total = ((terms / unit).trunc() * unit).sum(2)
    unit = torch.exp2(_exponent(total).clamp(min=-126.0) - 23)
    return (total / unit).trunc() * unit


def _exponent(x: Tensor) -> Tensor:
    return torch.where(x == 0, -1000.0, (torch.frexp(x)[1] - 1).double())


def measured(name: str, device: str) -> list[dict[str, object]]:
    part = plugins.default_part(f"accuracy.inputs.distributions:{name}")
    found: dict[str, list[Tensor]] = {}
    for seed in range(SEEDS):
        inputs = drawing.round_to(drawing.draw(part, PROBLEM, seed), "float32", device)
        reference = attention(*inputs.tensors, **HOW)
        q, k, v, _ = inputs.tensors
        seen = {"emulation": torch.stack([lse(q[0, :, h], k[0, :, h], HOW["scale"]) for h in range(PROBLEM.heads)])}
        found.setdefault("emulation, one key", []).append(one_key(q, k, HOW["scale"]))
        if device == "cuda":
            kernel = KERNEL().build(device)
            seen["torch_efficient"] = kernel.forward(q, k, v, out_dtype=q.dtype, **HOW)[1][0]
            alone = (x.reshape(-1, 1, 1, PROBLEM.head_dim) for x in (q, k, v))
            one = kernel.forward(*alone, out_dtype=q.dtype, **HOW)[1].reshape(q.shape[1:3])
            found.setdefault("torch_efficient, one key", []).append(one)
        for word, rounding in (("float32", policy.kernel), ("split", policy.split_products)):
            bound = bounds(*inputs.tensors, reference, rounding("float32"), **HOW)["lse"].likely(CHANCE)
            found.setdefault(word, []).append(bound[0])
        for kernel, x in seen.items():
            found.setdefault(kernel, []).append(x)
        found.setdefault("reference", []).append(reference.lse[0])
    all_of = {word: torch.stack(each) for word, each in found.items()}
    return [_row(name, kernel, all_of) for kernel in seen]


def _row(name: str, kernel: str, of: dict[str, Tensor]) -> dict[str, object]:
    error = of[kernel].double() - of["reference"]
    beyond = {f"beyond_{word}": int((error.abs() > of[word]).sum()) for word in ("float32", "split")}
    unit = 2.0**-24 * of["reference"].abs()
    return {
        "inputs": name, "kernel": kernel, "elements": error.numel(), **beyond,
        "mean": f"{float((error / unit).mean()):.3f}", "equal": int((of[kernel] == of["emulation"]).sum()),
        "equal_one_key": int((of[f"{kernel}, one key"] == of["emulation, one key"]).sum()),
        "median": f"{float((of['split'] / error.square().mean().sqrt()).median()):.3g}",
    }  # fmt: skip


def main(path: Path, device: str = "cpu") -> None:
    make_exact()
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame([row for name in NAMES for row in measured(name, device)])
    table.to_csv(path, index=False)
    print(table.to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
