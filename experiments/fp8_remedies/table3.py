"""FlashAttention-3's Table 3 (arXiv 2407.08608) on a CPU: RMSE of out in FP8, by length, head dim, scales and rotation.

python experiments/fp8_remedies/table3.py [SEEDS]: about a minute a seed. The inputs are the paper's: N(0, 1) plus
N(0, 100) for one element in a thousand. The paper names neither the head dim nor the length of its table.
"""

import sys
from dataclasses import replace

import torch
from torch import Tensor

from accuracy.core.quantisation import Policy
from accuracy.runtime.quantise import quantise, quantise_weights, rotation

PAPER = {"a scale a tensor": 2.4e-2, "rotation": 9.3e-3, "blocks and rotation": 9.1e-3, "blocks": 2.4e-2}
CAST = Policy(q="e4m3", k="e4m3", v="e4m3", p="e4m3", block=128)
POLICIES = {
    "a scale a tensor": (False, CAST), "rotation": (True, CAST),
    "blocks and rotation": (True, replace(CAST, granularity="block")),
    "blocks": (False, replace(CAST, granularity="block")),
    "powers of two, a tensor": (False, replace(CAST, scale_format="e8m0")),
    "powers of two, rotation": (True, replace(CAST, scale_format="e8m0")),
    "powers of two, blocks and rotation": (True, replace(CAST, granularity="block", scale_format="e8m0")),
    "powers of two, blocks": (False, replace(CAST, granularity="block", scale_format="e8m0")),
    "a scale a tensor, P exact": (False, replace(CAST, p="none")),
    "a scale a tensor, P by 448": (False, replace(CAST, p_prescale=448.0)),
}  # fmt: skip
SHAPES = ((8192, 128), (1024, 64), (4096, 128), (8192, 256))
ROWS = 1024


def draw(length: int, dim: int, generator: torch.Generator) -> Tensor:
    plain, large = (torch.randn(length, dim, generator=generator) for _ in range(2))
    return (plain + 10 * large * (torch.rand(length, dim, generator=generator) < 0.001)).half().float()


def rmse(policy: Policy, turned: bool, q: Tensor, k: Tensor, v: Tensor) -> tuple[float, float]:
    """Of the first rows' out: root mean square error, and relative."""
    scale = q.shape[-1] ** -0.5
    exact = torch.softmax(q[:ROWS].double() @ k.double().T * scale, -1) @ v.double()
    if turned:
        q, k = (x @ rotation(x.shape[-1], x.dtype, x.device) for x in (q, k))
    low_q, low_k, low_v = (quantise(x[None], "e4m3", policy)[0] for x in (q, k, v))
    scores = low_q[:ROWS] @ low_k.T * scale
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = quantise_weights(weights, policy) @ low_v / weights.sum(-1, keepdim=True)
    error = out.half().double() - exact
    return float(error.square().mean().sqrt()), float(error.norm() / exact.norm())


def main(seeds: int) -> None:
    print("| keys | head dim |", " | ".join(POLICIES), "|")
    for length, dim in SHAPES:
        found = []
        for turned, policy in POLICIES.values():
            squares = []
            for seed in range(2, 2 + seeds):
                generator = torch.Generator().manual_seed(seed)
                squares.append(rmse(policy, turned, *(draw(length, dim, generator) for _ in range(3)))[0] ** 2)
            found.append((sum(squares) / seeds) ** 0.5)
        print(f"| {length:,} | {dim} |", " | ".join(f"{each:.2e}" for each in found), "|", flush=True)
    print("| the paper | |", " | ".join(f"{PAPER[name]:.1e}" if name in PAPER else "" for name in POLICIES), "|")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
