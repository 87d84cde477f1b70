"""How many errors of healthy kernels are beyond their bounds, and how near are the bounds? On 14 distributions.

    python experiments/tolerances/sweep.py reports/tolerances/bounds.csv

A row for each distribution, dtype and kernel that runs on a CPU: elements of out, lse, dq, dk and dv, those beyond the
certain bound, those beyond the one that 1 in 10^6 may exceed, and the largest of the tensors' medians of that bound
over the root mean square error of the element's row (of lse: of all). Causal, 4 heads of 64, 256 tokens, 4
seeds.
"""

import sys
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
from accuracy.kernel.chunked import Chunked
from accuracy.kernel.eager import Eager
from accuracy.kernel.torch_flash import TorchFlash
from accuracy.kernel.torch_math import TorchMath
from accuracy.reference.float64 import attention
from accuracy.runtime.arithmetic import make_exact

KERNELS = {"eager": Eager(), "chunked": Chunked(key_chunk=64), "torch_math": TorchMath(), "torch_flash": TorchFlash()}
DTYPES, SEEDS, CHANCE = ("bfloat16", "float16", "float32"), 4, 1e-6
PROBLEM = Problem(1, 256, 4, 4, 64, "causal", 64**-0.5)
HOW = {"scale": PROBLEM.softmax_scale, "causal": True}
TENSORS = ("out", "lse", "dq", "dk", "dv")


def results(kernel: object, inputs: base.Inputs) -> dict[str, Tensor]:
    q, k, v, dout = inputs.tensors
    out, lse = kernel.forward(q, k, v, out_dtype=q.dtype, **HOW)
    gradients = kernel.backward(dout, q, k, v, out, lse, gradient_dtype=q.dtype, **HOW)
    return dict(zip(TENSORS, (out, lse, *gradients), strict=True))


def near(likely: Tensor, error: Tensor) -> float:
    """Median of the bound over the error's size; NaN where every error is 0."""
    square = error.square()
    size = (square.mean(-1, keepdim=True) if error.dim() == 4 else square.mean()).sqrt().expand_as(error)
    return float((likely / size)[size > 0].median())


def measured(name: str, dtype: str) -> list[dict[str, object]]:
    source = f"accuracy.inputs.{name}"
    part = Part(name, source, tuple(plugins.default_options(plugins.load(source))))
    rows = {kernel: {"inputs": name, "dtype": dtype, "kernel": kernel, "elements": 0, "beyond_certain": 0,
                     "beyond_likely": 0, "medians": []} for kernel in KERNELS}  # fmt: skip
    for seed in range(SEEDS):
        inputs = base.round_to(base.draw(part, PROBLEM, seed), dtype, "cpu")
        reference = attention(*inputs.tensors, **HOW)
        plain, short = (
            bounds(*inputs.tensors, reference, each, **HOW)
            for each in (policy.kernel(dtype), policy.short_sums(dtype, PROBLEM.seqlen))
        )
        for kernel, row in rows.items():
            for tensor, x in results(KERNELS[kernel], inputs).items():
                bound = (short if kernel == "torch_flash" else plain)[tensor]
                error, likely = (x.double() - getattr(reference, tensor)).abs(), bound.likely(CHANCE)
                row["elements"] += error.numel()
                row["beyond_certain"] += int((error > bound.certain).sum())
                row["beyond_likely"] += int((error > likely).sum())
                row["medians"].append(near(likely, error))
    return [row | {"largest_median": f"{pd.Series(row.pop('medians')).max():.3g}"} for row in rows.values()]


def main(path: Path) -> None:
    make_exact()
    torch.set_num_threads(1)
    names = sorted(each.stem for each in (CONFIGS / "inputs").glob("*.yaml") if each.stem != "captured")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in names:
        for dtype in DTYPES:
            rows += measured(name, dtype)
            pd.DataFrame(rows).to_csv(path, index=False)
    table = pd.DataFrame(rows)
    print(table.groupby("inputs")[["elements", "beyond_certain", "beyond_likely"]].sum().to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
