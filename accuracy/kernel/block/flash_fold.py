"""How many calls of flash-attention 2's kernels can be one call, side by side in the batch, without changing a bit?

A row's sums do not depend on the batch but for two numbers that the library (and torch's copy of it) derives from it:
into how many parts the forward cuts the keys (`num_splits_heuristic` of csrc/flash_attn/flash_api.cpp), and over how
many partial sums of dq the deterministic backward deals them out (gridDimx of flash_bwd_launch_template.h).
"""

from functools import lru_cache

import torch
from torch import Tensor

GRID_LIMIT = 65535
"""CUDA's for the second and third dimension of a grid, which are the batch, or its heads."""


def foldable(way: str, calls: int, q: Tensor, k: Tensor) -> int:
    """See `accuracy.kernel.base.FoldingKernel`."""
    batch, rows, heads, dim = q.shape
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    return most(way, calls, (batch, rows, heads, dim), k.shape[1], processors)


@lru_cache(maxsize=4096)
def most(way: str, calls: int, queries: tuple[int, int, int, int], keys: int, processors: int) -> int:
    """The most calls up to `calls` that have, as have all fewer, the parts of one. queries: (B, Sq, H, D) of one."""
    batch, rows, heads, dim = queries

    def parts(folded: int) -> int:
        if way == "forward":
            return forward_splits(folded * batch * heads, rows, keys, dim, processors)
        return backward_parts(folded * batch * heads, keys, dim, processors)

    calls = min(calls, GRID_LIMIT // batch)
    return next((folded - 1 for folded in range(2, calls + 1) if parts(folded) != parts(1)), max(1, calls))


def forward_splits(planes: int, rows: int, keys: int, dim: int, processors: int) -> int:
    """The forward's parts of the keys, for `planes` heads of the whole batch."""
    tiles = -(-keys // (256 if dim <= 64 else 128 if dim <= 128 else 64))
    if rows == 1 and tiles > 1:
        return -planes  # the query heads of a key/value head become rows: not counted here, so never alike
    work, slots = planes * -(-rows // 64), 2 * processors
    if work >= 0.8 * slots or tiles == 1:
        return 1
    eligible = [n for n in range(1, min(128, slots, tiles) + 1) if n == 1 or -(-tiles // n) != -(-tiles // (n - 1))]
    efficiency = {n: work * n / slots / -(-work * n // slots) for n in eligible}
    best = max(efficiency.values())
    return next(n for n in eligible if efficiency[n] >= 0.85 * best)


def backward_parts(planes: int, keys: int, dim: int, processors: int) -> int:
    """The deterministic backward's partial sums of dq that get a tile of keys (`kBlockN` of the `run_mha_bwd_hdim`, on
    devices of little shared memory: smaller tiles can only tell apart what is alike); 1, too, where each gets one: they
    are added in the order in which a single sum would add the tiles."""
    widths = (96, 128), (192, 64), (256, 32)
    tiles = -(-keys // next(width for limit, width in widths if dim <= limit))
    sums = -(-processors // planes)
    return 1 if sums >= tiles else sums
