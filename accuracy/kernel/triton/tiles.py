"""How large the tiles are: rows and keys, warps and pipeline stages for each dtype and padded head dim.

Fixed tables, no search at run time: another tile size sums in another order, and equal cases must give equal bits.
Chosen for compute capability 9.0 so that the loops over whole tiles keep everything in registers (255 a thread) and
shared memory (227 KiB); `python -m tests.benchmark.tiles` tries others.
"""

from dataclasses import dataclass

import torch


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
FORWARD = {64: Tiles(128, 64, 8, 3), 128: Tiles(128, 64, 8, 3), 256: Tiles(128, 64, 8, 2)}
QUERY_GRADIENT = {64: Tiles(128, 64, 8, 3), 128: Tiles(128, 64, 8, 3), 256: Tiles(128, 32, 8, 2)}
KEY_GRADIENT = {64: Tiles(64, 128, 8, 3), 128: Tiles(64, 128, 8, 3), 256: Tiles(32, 64, 8, 2)}
FUSED_GRADIENT = {64: Tiles(64, 128, 8, 3), 128: Tiles(32, 128, 8, 3), 256: Tiles(32, 64, 8, 2)}
# float32 inputs: exact products run outside of the tensor cores and keep their factors in registers.
FLOAT32 = {64: Tiles(32, 32, 8, 2), 128: Tiles(32, 32, 8, 2), 256: Tiles(16, 32, 8, 1)}


def choose(table: dict[int, Tiles], dtype: torch.dtype, padded: int) -> Tiles:
    """The tiles for inputs of a dtype and a padded head dim."""
    table = FLOAT32 if dtype == torch.float32 else table
    return next(tiles for limit, tiles in table.items() if padded <= limit)


def padded_dim(dim: int) -> int:
    """The power of two that a tile's columns are padded to, at least the 16 that a product needs."""
    return max(16, 1 << (dim - 1).bit_length())
