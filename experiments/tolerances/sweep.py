"""How many errors of healthy kernels are beyond their bounds, and how near are the bounds? On 14 distributions.

    python experiments/tolerances/sweep.py reports/tolerances/bounds.csv [cpu|cuda [KERNEL]]

A row for each distribution, dtype and kernel that runs on the device (default: cpu; KERNEL: of that alone): elements
of out, lse, dq, dk and dv, those beyond the certain bound, those beyond the one that 1 in 10^6 may exceed, and the
largest of the tensors' medians of that bound over the root mean square error of the element's row (of lse: of all).
Causal, 4 heads of 64, 256 tokens, 4 seeds.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.core import plugins
from accuracy.core.case import Part, Problem
from accuracy.core.paths import CONFIGS
from accuracy.inputs import base
from accuracy.reference.float64 import attention
from accuracy.runtime.arithmetic import make_exact

KERNELS = {
    "cpu": {"eager": {}, "chunked": {"key_chunk": 64}, "torch_math": {}, "torch_flash": {}},
    "cuda": {name: {} for name in (
        "eager", "torch_math", "flash_attn", "torch_flash", "torch_efficient", "torch_cudnn", "flex_attention",
        "triton_carry", "triton_fused_backward", "triton_split_backward",
    )},
}  # fmt: skip
DTYPES, SEEDS, CHANCE = ("bfloat16", "float16", "float32"), 4, 1e-6
PROBLEM = Problem(1, 256, 4, 4, 64, "causal", 64**-0.5)
HOW = {"scale": PROBLEM.softmax_scale, "causal": True}
TENSORS = ("out", "lse", "dq", "dk", "dv")


def results(kernel: object, inputs: base.Inputs) -> dict[str, Tensor]:
    q, k, v, dout = inputs.tensors
    out, lse = kernel.forward(q, k, v, out_dtype=q.dtype, **HOW)
    gradients = kernel.backward(dout, q, k, v, out, lse, gradient_dtype=q.dtype, **HOW)
    return dict(zip(TENSORS, (out, lse, *gradients), strict=True))


def kernels(device: str, dtype: str, only: str = "") -> Iterator[tuple[str, object]]:
    """Those that the device has, in this dtype."""
    for name, knobs in KERNELS[device].items():
        if only not in ("", name):
            continue
        kernel = plugins.load(f"accuracy.kernel.{name}").KERNEL(**knobs)
        if kernel.abilities(device).unsupported(name, dtype, PROBLEM.head_dim, set()) is None:
            yield name, kernel.build(device)


def policies(device: str, dtype: str) -> dict[str, policy.Policy]:
    """Where each kernel rounds."""
    found = dict.fromkeys(KERNELS[device], policy.kernel(dtype))
    if device == "cpu":
        return found | {"torch_flash": policy.short_sums(dtype, PROBLEM.seqlen)}
    return found | {"torch_efficient": policy.split_products(dtype)}


def near(likely: Tensor, error: Tensor) -> float:
    """Median of the bound over the error's size; NaN where every error is 0."""
    square = error.square()
    size = (square.mean(-1, keepdim=True) if error.dim() == 4 else square.mean()).sqrt().expand_as(error)
    return float((likely / size)[size > 0].median())


def measured(name: str, dtype: str, device: str, only: str) -> list[dict[str, object]]:
    source = f"accuracy.inputs.{name}"
    part = Part(name, source, tuple(plugins.default_options(plugins.load(source))))
    built = dict(kernels(device, dtype, only))
    rounding = {kernel: policies(device, dtype)[kernel] for kernel in built}
    rows = {kernel: {"inputs": name, "dtype": dtype, "kernel": kernel, "elements": 0, "beyond_certain": 0,
                     "beyond_likely": 0, "medians": []} for kernel in built}  # fmt: skip
    for seed in range(SEEDS):
        inputs = base.round_to(base.draw(part, PROBLEM, seed), dtype, device)
        reference = attention(*inputs.tensors, **HOW)
        found = {each: bounds(*inputs.tensors, reference, each, **HOW) for each in set(rounding.values())}
        for kernel, row in rows.items():
            for tensor, x in results(built[kernel], inputs).items():
                bound = found[rounding[kernel]][tensor]
                error, likely = (x.double() - getattr(reference, tensor)).abs(), bound.likely(CHANCE)
                row["elements"] += error.numel()
                row["beyond_certain"] += int((error > bound.certain).sum())
                row["beyond_likely"] += int((error > likely).sum())
                row["medians"].append(near(likely, error))
    return [row | {"largest_median": f"{pd.Series(row.pop('medians')).max():.3g}"} for row in rows.values()]


def main(path: Path, device: str = "cpu", only: str = "") -> None:
    make_exact()
    torch.set_num_threads(1)
    names = sorted(each.stem for each in (CONFIGS / "inputs").glob("*.yaml") if each.stem != "captured")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in names:
        for dtype in DTYPES:
            rows += measured(name, dtype, device, only)
            pd.DataFrame(rows).to_csv(path, index=False)
    table = pd.DataFrame(rows)
    print(table.groupby("inputs")[["elements", "beyond_certain", "beyond_likely"]].sum().to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
