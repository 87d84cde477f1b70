"""Which tiles are fastest? By hand, before the tables in `accuracy/kernel/triton/tiles.py` are changed.

python -m tests.benchmark.tiles [HEAD_DIM]

Each candidate of each table at S = 8192, H = 32, Hk = 8, bfloat16, causal; one that does not fit says so.
"""

import sys
from collections.abc import Callable
from functools import partial

import torch

from accuracy.runtime import arithmetic, device
from tests.benchmark.kernels import attempt, milliseconds, say

# rows, keys, warps, stages
CANDIDATES = {
    "FORWARD": [(128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3), (64, 128, 4, 2),
                (128, 32, 8, 3)],
    "QUERY_GRADIENT": [(128, 64, 8, 3), (128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 4, 2), (128, 128, 8, 1)],
    "KEY_GRADIENT": [(64, 128, 8, 3), (64, 128, 8, 2), (32, 128, 8, 3), (32, 128, 8, 2), (64, 64, 8, 2),
                     (64, 64, 4, 2), (32, 64, 4, 3)],
    "FUSED_GRADIENT": [(32, 128, 8, 3), (32, 128, 8, 2), (64, 128, 8, 2), (64, 64, 8, 2), (32, 64, 4, 2)],
}  # fmt: skip


def main() -> None:
    from accuracy.kernel.triton import forward, tiles
    from accuracy.kernel.triton.key_gradient import key_gradient
    from accuracy.kernel.triton.query_gradient import query_gradient
    from accuracy.kernel.triton.statistics import row_statistics

    arithmetic.make_exact()
    dim = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    q, k, v, dout = (torch.randn(1, 8192, heads, dim, device="cuda", dtype=torch.bfloat16) for heads in (32, 8, 8, 32))
    how = {"scale": dim**-0.5, "causal": True}
    out, lse = forward.attend(q, k, v, **how, out_dtype=q.dtype)
    statistics = row_statistics(dout, out, lse)
    dq, dk, dv, total = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.zeros_like(q).float()
    calls: dict[str, Callable[[], object]] = {
        "FORWARD": partial(forward.attend, q, k, v, **how, out_dtype=q.dtype),
        "QUERY_GRADIENT": partial(query_gradient, dq, dout, q, k, v, *statistics, **how),
        "KEY_GRADIENT": partial(key_gradient, dk, dv, None, dout, q, k, v, *statistics, **how),
        "FUSED_GRADIENT": partial(key_gradient, dk, dv, total, dout, q, k, v, *statistics, **how),
    }
    say(f"{device.name('cuda')}, D={dim}; rows, keys, warps, stages: milliseconds")
    for name, candidates in CANDIDATES.items():
        table = getattr(tiles, name)
        for candidate in candidates:
            table.update({limit: tiles.Tiles(*candidate) for limit in table})
            took = attempt(f"{name} {candidate}", partial(milliseconds, calls[name]))
            if took is not None:
                say(f"{name:15} {candidate!s:18} {took:8.3f}")


if __name__ == "__main__":
    main()
