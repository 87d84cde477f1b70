"""Blocks added to a float32 sum one after another, as one CUDA kernel: each element's roundings in the same order.

torch would take a kernel a block. Needs triton: imported where it is used.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TILE_ELEMENTS = 2048


def serves(total: Tensor, blocks: Tensor) -> bool:
    """Whether `add` does just what torch would: a float32 sum, of blocks that float32 holds, rows of D contiguous."""
    contiguous = total.stride(-1) == 1 and blocks.stride(-1) == 1
    return contiguous and total.dtype == torch.float32 and blocks.dtype in BLOCK_DTYPES


def add(total: Tensor, blocks: Tensor) -> None:
    """total (B, S, H, D) += blocks (B, N, S, H, D)[:, 0], then [:, 1], and so on."""
    batch, length, heads, dim = total.shape
    rows = batch * length * heads
    padded = triton.next_power_of_2(dim)
    tile = max(1, TILE_ELEMENTS // padded)
    _add[(triton.cdiv(rows, tile),)](
        total,
        blocks,
        rows,
        length,
        heads,
        blocks.shape[1],
        *total.stride()[:3],
        *blocks.stride()[:4],
        dim,
        padded,
        tile,
    )


@triton.jit
def _add(
    total, blocks, rows, length, heads, count, total_batch, total_row, total_head,
    block_batch, block_next, block_row, block_head, dim: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    head, token, batch = row % heads, (row // heads) % length, row // (heads * length)
    column = tl.arange(0, padded)
    inside = (row < rows)[:, None] & (column < dim)[None, :]
    total += (batch * total_batch + token * total_row + head * total_head)[:, None] + column[None, :]
    blocks += (batch * block_batch + token * block_row + head * block_head)[:, None] + column[None, :]
    value = tl.load(total, mask=inside)
    for _ in range(count):
        value += tl.load(blocks, mask=inside).to(tl.float32)
        blocks += block_next
    tl.store(total, value, mask=inside)
