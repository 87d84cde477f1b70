"""Does an emulation of torch's memory-efficient kernel have its errors, and are both within the bounds of its policy?

    python experiments/tolerances/memory_efficient.py FILE [cpu|cuda [SEEDS]]

A row for each distribution, dtype, tensor, seed (default: 1) and kernel (the emulation; on cuda torch_efficient, too):
elements, how many are beyond the certain bound and beyond the one that 1 in 10^6 may exceed, of policy.split_products,
and beyond the latter of policy.kernel, which knows of nothing that is stated below; the largest error over the former,
its median over the row's root mean square error (without the rows of apart.py), and how many elements equal the
emulation's. Settings: sweep.py's.

torch 2.11, aten/src/ATen/native/transformers/cuda/mem_eff_attention: blocks of 64 queries and keys (head_dim 64).
Float32: three_tf32.py. 16 bits: an instruction adds up 8 terms (gemm_kernel_utils.h, `InstructionShape`); P is stored
in the inputs' dtype before dS is made of it, and dS again (kernel_backward.h).
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import sweep
import torch
from apart import apart
from three_tf32 import LOG2E, STEP, _instruction
from three_tf32 import product as split_product
from torch import Tensor

from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.core import plugins
from accuracy.core.paths import CONFIGS
from accuracy.inputs import drawing
from accuracy.reference.float64 import attention
from accuracy.runtime.arithmetic import make_exact

BLOCK, DTYPES = 64, ("float16", "float32")


def product(left: Tensor, right: Tensor, kept: Tensor | None = None) -> Tensor:
    """kept + left (M, K) right (K, N), float32, in blocks of 64 terms; operands of 16 bits are as they are stored."""
    total = torch.zeros(len(left), right.shape[1], device=left.device) if kept is None else kept
    for first in range(0, left.shape[1], BLOCK):
        here = slice(first, first + BLOCK)
        block = split_product if left.dtype == torch.float32 else _short_block
        total = block(left[:, here], right[here].T, total)
    return total


def _short_block(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    mine = total.double()
    for first in range(0, left.shape[1], STEP):
        here = slice(first, first + STEP)
        mine = _instruction(mine, left[:, here].double(), right[:, here].double())
    return mine.float()


def emulated(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float) -> dict[str, Tensor]:
    """out, lse, dq, dk, dv of one head, causal: (S, D) each."""
    log2e, hidden = LOG2E.to(q.device), torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).triu(1)
    scores = (product(q, k.T) * (torch.tensor(scale, device=q.device) * log2e)).masked_fill(hidden, -math.inf)
    top, total = torch.full((len(q), 1), -math.inf, device=q.device), torch.zeros(len(q), 1, device=q.device)
    sums = torch.zeros(len(q), v.shape[1], device=q.device)
    for first in range(0, len(k), BLOCK):
        here = slice(first, first + BLOCK)
        new = scores[:, here].amax(1, keepdim=True).maximum(top)
        p, factor = torch.exp2(scores[:, here] - new), torch.exp2(top - new)
        total, top = total * factor + p.sum(1, keepdim=True), new
        sums = product(p.to(v.dtype), v[here], sums * factor)
    out, lse = (sums / total).to(q.dtype), top / log2e + total.log()
    delta = (dout.float() * out.float()).sum(1, keepdim=True)
    again = product(k, q.T).T * scale  # the other operand is split first
    p = torch.exp((again - lse).masked_fill(hidden, -math.inf)).to(q.dtype)
    ds = ((product(dout, v.T) - delta) * p.float() * scale).to(q.dtype)
    found = {"out": out, "lse": lse[:, 0], "dq": product(ds, k), "dk": product(ds.T, q), "dv": product(p.T, dout)}
    return {name: x if name == "lse" else x.to(q.dtype) for name, x in found.items()}


def emulation(inputs: drawing.Inputs) -> dict[str, Tensor]:
    """Of all heads, in the kernel's shapes."""
    each = [emulated(*(x[0, :, head] for x in inputs.tensors), sweep.HOW["scale"]) for head in range(inputs.q.shape[2])]
    return {name: torch.stack([x[name] for x in each], 0 if name == "lse" else 1)[None] for name in sweep.TENSORS}


def measured(name: str, dtype: str, device: str, seed: int) -> Iterator[dict[str, object]]:
    part = plugins.default_part(f"accuracy.inputs.distributions:{name}")
    inputs = drawing.round_to(drawing.draw(part, sweep.PROBLEM, seed), dtype, device)
    reference = attention(*inputs.tensors, **sweep.HOW)
    stated = replace(policy.split_products(dtype), reads="lse"), policy.kernel(dtype, reads="lse")
    own, other = (bounds(*inputs.tensors, reference, each, **sweep.HOW) for each in stated)
    shown, seen = apart(*inputs.tensors, sweep.HOW["scale"]), {"emulation": emulation(inputs)}
    for kernel, built in sweep.kernels(device, dtype, "torch_efficient"):
        seen[kernel] = sweep.results(built, inputs)
    for kernel, found in seen.items():
        for tensor, x in found.items():
            error, likely = (x.double() - getattr(reference, tensor)).abs(), own[tensor].likely(sweep.CHANCE)
            plain = sweep.near(likely, error)[~shown[tensor].expand_as(error)]
            yield {
                "inputs": name, "dtype": dtype, "kernel": kernel, "tensor": tensor, "seed": seed,
                "elements": error.numel(), "beyond_certain": int((error > own[tensor].certain).sum()),
                "beyond_likely": int((error > likely).sum()),
                "beyond_rounded": int((error > other[tensor].likely(sweep.CHANCE)).sum()),
                "largest": f"{float((error / likely).nan_to_num().max()):.3g}",
                "median": f"{float(plain.nanmedian() if len(plain) else math.nan):.3g}",
                "equal": int((x == seen["emulation"][tensor]).sum()),
            }  # fmt: skip


def main(path: Path, device: str = "cpu", seeds: str = "1") -> None:
    make_exact()
    torch.set_num_threads(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    names = sorted(each.stem for each in (CONFIGS / "inputs").glob("*.yaml") if each.stem != "captured")
    table = []
    for name in names:
        for dtype in DTYPES:
            for seed in range(int(seeds)):
                table += measured(name, dtype, device, seed)
        pd.DataFrame(table).to_csv(path, index=False)
    print(pd.DataFrame(table).drop(columns="seed").to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
