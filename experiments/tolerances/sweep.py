"""How many errors of healthy kernels are beyond their bounds, and how near are the bounds? On 14 distributions.

    python experiments/tolerances/sweep.py reports/tolerances/bounds.csv [cpu|cuda [KERNEL,...]]

A row for each distribution, dtype and kernel that runs on the device (default: cpu; KERNEL: of those alone): elements
of out, lse, dq, dk and dv, those beyond the certain bound, those beyond the one that 1 in 10^6 may exceed, the
largest of the tensors' medians of that bound over the root mean square error of the element's row (of lse: of all), and
of which tensor it is. Rows that are tied or exactly representable (apart.py) are shown apart: how many elements they
have, and their largest median. Causal, 4 heads of 64, 256 tokens, 4 seeds.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from apart import apart
from torch import Tensor

from accuracy.bound import policy
from accuracy.bound.running import bounds
from accuracy.config import find
from accuracy.core import plugins
from accuracy.core.case import Problem
from accuracy.core.paths import CONFIGS
from accuracy.inputs import drawing
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


def results(kernel: object, inputs: drawing.Inputs) -> dict[str, Tensor]:
    q, k, v, dout = inputs.tensors
    out, lse = kernel.forward(q, k, v, out_dtype=q.dtype, **HOW)
    gradients = kernel.backward(dout, q, k, v, out, lse, gradient_dtype=q.dtype, **HOW)
    return dict(zip(TENSORS, (out, lse, *gradients), strict=True))


def kernels(device: str, dtype: str, only: str = "") -> Iterator[tuple[str, object]]:
    """Those that the device has, in this dtype."""
    for name, knobs in KERNELS[device].items():
        if only and name not in only.split(","):
            continue
        kernel = plugins.load(find.part("kernel", name).source).KERNEL(**knobs)
        if kernel.abilities(device).unsupported(name, dtype, PROBLEM.head_dim, set()) is None:
            yield name, kernel.build(device)


def policies(device: str, dtype: str) -> dict[str, policy.Policy]:
    """Where each kernel rounds, and what its backward reads. torch_math's is autograd's, in float32."""
    found = dict.fromkeys(KERNELS[device], policy.kernel(dtype, reads="lse"))
    found["torch_math"] = policy.kernel(dtype, weights="float32", reads="weights")
    special = policy.short_sums(dtype, PROBLEM.seqlen) if device == "cpu" else policy.split_products(dtype)
    return found | {"torch_flash" if device == "cpu" else "torch_efficient": replace(special, reads="lse")}


def near(likely: Tensor, error: Tensor) -> Tensor:
    """The bound over the size of the errors in an element's row; NaN where every error is 0."""
    square = error.square()
    size = (square.mean(-1, keepdim=True) if error.dim() == 4 else square.mean()).sqrt().expand_as(error)
    return torch.where(size > 0, likely / size, torch.nan)


def largest(ratios: dict[str, list[Tensor]]) -> tuple[str, str]:
    """Of the tensors' medians over all seeds, the largest, and whose it is; NaN where there is none."""
    medians = {name: float(torch.cat(each).nanmedian()) for name, each in ratios.items() if sum(map(len, each))}
    value, name = max(((x, name) for name, x in medians.items() if x == x), default=(float("nan"), ""))
    return f"{value:.3g}", name


def measured(name: str, dtype: str, device: str, only: str) -> list[dict[str, object]]:
    part = plugins.default_part(f"accuracy.inputs.distributions:{name}")
    built = dict(kernels(device, dtype, only))
    rounding = {kernel: policies(device, dtype)[kernel] for kernel in built}
    counts = dict.fromkeys(("elements", "beyond_certain", "beyond_likely", "elements_apart"), 0)
    rows = {kernel: {"inputs": name, "dtype": dtype, "kernel": kernel, **counts} | {
                     group: {tensor: [] for tensor in TENSORS} for group in ("plain", "apart")}
            for kernel in built}  # fmt: skip
    for seed in range(SEEDS):
        inputs = drawing.round_to(drawing.draw(part, PROBLEM, seed), dtype, device)
        reference = attention(*inputs.tensors, **HOW)
        shown = apart(*inputs.tensors, HOW["scale"])
        found = {each: bounds(*inputs.tensors, reference, each, **HOW) for each in set(rounding.values())}
        for kernel, row in rows.items():
            for tensor, x in results(built[kernel], inputs).items():
                bound = found[rounding[kernel]][tensor]
                error, likely = (x.double() - getattr(reference, tensor)).abs(), bound.likely(CHANCE)
                row["elements"] += error.numel()
                row["beyond_certain"] += int((error > bound.certain).sum())
                row["beyond_likely"] += int((error > likely).sum())
                chosen, ratio = shown[tensor].expand_as(error), near(likely, error)
                row["elements_apart"] += int(chosen.sum())
                row["plain"][tensor].append(ratio[~chosen])
                row["apart"][tensor].append(ratio[chosen])
    return [finished(row) for row in rows.values()]


def finished(row: dict[str, object]) -> dict[str, object]:
    plain, apart = largest(row.pop("plain")), largest(row.pop("apart"))
    return row | {"largest_median": plain[0], "of": plain[1], "median_apart": apart[0]}


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
