"""How many calls of flash-attention 2's kernels can be one call, side by side in the batch, without changing a bit?

A row's sums do not depend on the batch but for two numbers that the library (and torch's copy of it) derives from it:
into how many parts the forward cuts the keys (`num_splits_heuristic` of csrc/flash_attn/flash_api.cpp), and over how
many partial sums of dq the deterministic backward deals them out (gridDimx of flash_bwd_launch_template.h). The
package's operator for cached keys is told the first number, so that any number of its forwards can be one call.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

GRID_LIMIT = 65535
"""CUDA's for the second and third dimension of a grid, which are the batch, or its heads."""
PARTIAL_ELEMENTS = 2**26
"""Of the partial results of a forward that is told its number of parts: 256 MiB."""
ROOMY = 145 * 1024
"""Bytes of shared memory of a processor from which a block may have the 144 KiB that the larger tiles take."""


class Device(NamedTuple):
    """processors; roomy: whether their shared memory has room for the larger tiles of the backward."""

    processors: int
    roomy: bool

    @classmethod
    def of(cls, x: Tensor) -> "Device":
        """That of a tensor."""
        about = torch.cuda.get_device_properties(x.device)
        return cls(about.multi_processor_count, about.shared_memory_per_multiprocessor >= ROOMY)


def foldable(way: str, calls: int, q: Tensor, k: Tensor) -> int:
    """At most how many of `calls` calls on q (B, Sq, H, D), k (B, Sk, Hk, D) give the same bits as one call; so do any
    fewer. way: forward or backward. The tiles are taken for the smaller ones, which can only tell apart what is alike.
    A kernel with `of_items(n)` returns by it one whose calls are of n items each, and may fold more of these."""
    batch, rows, heads, dim = q.shape
    return most(way, calls, (batch, rows, heads, dim), k.shape[1], Device.of(q)._replace(roomy=False))


@lru_cache(maxsize=4096)
def most(way: str, calls: int, queries: tuple[int, int, int, int], keys: int, device: Device) -> int:
    """The most calls up to `calls` that have, as have all fewer, the parts of one. queries: (B, Sq, H, D) of one."""
    batch, rows, heads, dim = queries

    def parts(folded: int) -> int:
        if way == "forward":
            return forward_splits(folded * batch * heads, rows, keys, dim, device.processors)
        return backward_parts(folded * batch * heads, keys, dim, device)

    calls = min(calls, GRID_LIMIT // batch)
    return next((folded - 1 for folded in range(2, calls + 1) if parts(folded) != parts(1)), max(1, calls))


@lru_cache(maxsize=4096)
def backward_calls(
    calls: int, queries: tuple[int, int, int, int], keys: int, device: Device, deterministic: bool = True
) -> list[int]:
    """How many of `calls` backwards are each call, as few as have the sums of one. queries: as of `most`."""
    batch, _, heads, dim = queries

    def parts(folded: int) -> int:
        return backward_parts(folded * batch * heads, keys, dim, device) if deterministic else 1

    found: list[int] = []
    while calls:
        found.append(next(each for each in range(min(calls, GRID_LIMIT // batch), 0, -1) if parts(each) == parts(1)))
        calls -= found[-1]
    return found


@lru_cache(maxsize=4096)
def most_told(calls: int, queries: tuple[int, int, int, int], keys: int, processors: int) -> int:
    """As `most`, of forwards that are told the number of parts of one: as many as grid and memory allow."""
    batch, rows, heads, dim = queries
    splits = forward_splits(batch * heads, rows, keys, dim, processors)
    if splits < 1:
        return 1
    room = calls if splits == 1 else PARTIAL_ELEMENTS // (splits * batch * heads * rows * dim)
    return max(1, min(calls, GRID_LIMIT // (batch * heads), room))


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


def backward_parts(planes: int, keys: int, dim: int, device: Device) -> int:
    """The deterministic backward's partial sums of dq that get a tile of keys (`kBlockN` of the `run_mha_bwd_hdim`); 1,
    too, where each gets one: they are added in the order in which a single sum would add the tiles."""
    widths = ((128, 128), (256, 64)) if device.roomy else ((96, 128), (192, 64), (256, 32))
    tiles = -(-keys // next(width for limit, width in widths if dim <= limit))
    sums = -(-device.processors // planes)
    return 1 if sums >= tiles else sums
