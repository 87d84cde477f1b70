"""Triton: how large the tiles are, and what every kernel here does with one: load, store, and see.

Sizes are fixed: another tile sums in another order, and equal cases must give equal bits. Chosen for compute capability
9.0: the loops over whole tiles keep all in registers and shared memory.
Offsets inside a tile are 32-bit; where a tile begins is 64-bit, so that tensors above 2^31 elements are right.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
"""Bits in a natural unit of information: scores and lse times this are powers of two."""
LN_2 = tl.constexpr(0.6931471805599453)


def strides(*tensors: Tensor | None) -> list[int]:
    """Strides of batch, row and head of each (B, S, heads, D), in elements. Raises ValueError where D has gaps."""
    for x in tensors:
        if x is not None and x.stride(-1) != 1:
            raise ValueError(f"a tensor with strides {x.stride()}; allowed: head dim contiguous; use .contiguous()")
    return [stride for x in tensors for stride in ((0, 0, 0) if x is None else x.stride()[:3])]


@dataclass(frozen=True)
class Tiles:
    """rows, keys: of one tile of scores; warps, stages: Triton's num_warps and num_stages."""

    rows: int
    keys: int
    warps: int
    stages: int


ROWS_MULTIPLE = 128
"""Every number of rows in the tables divides it."""

# 16-bit inputs, by the padded head dim's upper limit.
TILES = {
    "FORWARD": {64: Tiles(128, 64, 8, 3), 128: Tiles(128, 64, 8, 3), 256: Tiles(128, 64, 8, 2)},
    "QUERY_GRADIENT": {64: Tiles(128, 64, 8, 3), 128: Tiles(128, 64, 8, 3), 256: Tiles(128, 32, 8, 2)},
    "KEY_GRADIENT": {64: Tiles(64, 128, 8, 3), 128: Tiles(64, 128, 8, 3), 256: Tiles(32, 64, 8, 2)},
    "FUSED_GRADIENT": {64: Tiles(64, 128, 8, 3), 128: Tiles(32, 128, 8, 3), 256: Tiles(32, 64, 8, 2)},
}
# float32 inputs: exact products run outside of the tensor cores and keep their factors in registers.
FLOAT32 = {64: Tiles(32, 32, 8, 2), 128: Tiles(32, 32, 8, 2), 256: Tiles(16, 32, 8, 1)}


def choose(kernel: str, q: Tensor) -> tuple[Tiles, int]:
    """The tiles of one of `TILES` for inputs like q (B, Sq, H, D), and their padded head dim."""
    padded = padded_dim(q.shape[-1])
    sizes = FLOAT32 if q.dtype == torch.float32 else TILES[kernel]
    return next(tiles for limit, tiles in sizes.items() if padded <= limit), padded


def padded_dim(dim: int) -> int:
    """The power of two that a tile's columns are padded to, at least the 16 that a product needs."""
    return max(16, 1 << (dim - 1).bit_length())


@triton.jit
def load_rows(
    pointer, stride, present, tile: tl.constexpr, dim: tl.constexpr, padded: tl.constexpr, whole: tl.constexpr
):
    """(tile, padded): the rows at `pointer`, zero from row `present` and column `dim` on. whole: no row is missing."""
    row = tl.arange(0, tile)[:, None]
    column = tl.arange(0, padded)[None, :]
    places = pointer + row * stride + column
    if whole and dim == padded:
        rows = tl.load(places)
    elif whole:
        rows = tl.load(places, mask=column < dim, other=0.0)
    elif dim == padded:
        rows = tl.load(places, mask=row < present, other=0.0)
    else:
        rows = tl.load(places, mask=(row < present) & (column < dim), other=0.0)
    return rows


@triton.jit
def store_rows(
    pointer, stride, present, rows, tile: tl.constexpr, dim: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """Round to the tensor's dtype and write the first `present` rows and `dim` columns of (tile, padded)."""
    row = tl.arange(0, tile)[:, None]
    column = tl.arange(0, padded)[None, :]
    inside = (row < present) & (column < dim)
    tl.store(pointer + row * stride + column, rows.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def last_keys(row, rows, keys, causal: tl.constexpr):
    """The last key that each row sees; -1 and below: none. Causal masks are aligned at the bottom right."""
    return tl.minimum(row + keys - rows, keys - 1) if causal else row * 0 + keys - 1


@triton.jit
def key_ranges(first_row, rows, keys, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr):
    """(whole, end): the rows of a tile all see keys [0, whole), a multiple of key_tile; none sees keys from `end` on.

    The keys in between need masks; a loop over them must have num_stages=1: where two loops in a row are pipelined,
    ptxas serialises every wgmma of both.
    """
    if causal:
        whole = tl.minimum(tl.maximum(first_row + 1 + keys - rows, 0), keys) // key_tile * key_tile
        end = tl.minimum(tl.maximum(first_row + row_tile + keys - rows, 0), keys)
    else:
        whole = keys // key_tile * key_tile
        end = keys
    return whole, end
