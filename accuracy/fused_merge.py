"""The sigmoid merge's update of out as one CUDA kernel: the roundings of the torch expression, a third of its traffic.

torch computes `out - weight * (out - block_out)` in three passes over float32 tensors and a fourth to store it. Needs
triton: imported where it is used.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TILE_ELEMENTS = 4096


def serves(out: Tensor, lse: Tensor, block_out: Tensor) -> bool:
    """Whether `update` does just what torch would: float32 throughout but for the block, rows of D contiguous."""
    contiguous = out.stride(-1) == 1 and block_out.stride(-1) == 1  # a block that has waited is laid out so, too
    return contiguous and out.dtype == lse.dtype == torch.float32 and block_out.dtype in BLOCK_DTYPES


def update(out: Tensor, before: Tensor, weight: Tensor, block_out: Tensor) -> None:
    """out (B, S, H, D) becomes before - weight * (before - block_out); weight (B, S, H, 1). before: out itself, or in
    a dtype that float32 holds exactly."""
    batch, length, heads, dim = out.shape
    rows = batch * length * heads
    padded = triton.next_power_of_2(dim)
    tile = max(1, TILE_ELEMENTS // padded)
    _update[(triton.cdiv(rows, tile),)](
        out, before, weight, block_out, rows, length, heads,
        *out.stride()[:3], *before.stride()[:3], *weight.stride()[:3], *block_out.stride()[:3],
        dim, padded, tile, enable_fp_fusion=False,  # a fused multiply-add would round once where torch rounds twice
    )  # fmt: skip


@triton.jit
def _update(
    out, before, weight, block_out, rows, length, heads,
    out_batch, out_row, out_head, before_batch, before_row, before_head,
    weight_batch, weight_row, weight_head, block_batch, block_row, block_head,
    dim: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    head, token, batch = row % heads, (row // heads) % length, row // (heads * length)
    column = tl.arange(0, padded)
    inside = (row < rows)[:, None] & (column < dim)[None, :]
    out += (batch * out_batch + token * out_row + head * out_head)[:, None] + column[None, :]
    before += (batch * before_batch + token * before_row + head * before_head)[:, None] + column[None, :]
    block_out += (batch * block_batch + token * block_row + head * block_head)[:, None] + column[None, :]
    weight += batch * weight_batch + token * weight_row + head * weight_head
    old = tl.load(before, mask=inside).to(tl.float32)
    new = tl.load(block_out, mask=inside).to(tl.float32)
    share = tl.load(weight, mask=row < rows)[:, None]
    tl.store(out, old - share * (old - new), mask=inside)
