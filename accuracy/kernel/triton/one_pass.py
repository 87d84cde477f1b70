"""The sigmoid merge, eight kernels of torch, as one CUDA kernel with the same roundings in the same order."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

BLOCK_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MERGE_ELEMENTS = 4096  # of a tile
COUNTS = ("rows", "length")
"""Of which no value is compiled for by itself: 4 compilations, not 24, for worlds of 1 to 64 ranks of 7 schedules."""


def merges(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> bool:
    """Whether `merge` does just what torch would: float32 throughout but for the block, rows of D contiguous."""
    contiguous = out.stride(-1) == 1 and block_out.stride(-1) == 1  # a block that has waited is laid out so, too
    float32 = all(x.dtype == torch.float32 for x in (out, lse, block_lse))
    return contiguous and float32 and block_out.dtype in BLOCK_DTYPES


def merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Join out (B, S, H, D) and lse (B, S, H, 1) in place with block_out and block_lse of the same shapes."""
    _, length, heads, dim = out.shape
    rows, padded, tile = _tiles(out, MERGE_ELEMENTS)
    _merge[(triton.cdiv(rows, tile),)](
        out, lse, block_out, block_lse, rows, length, heads,
        *out.stride()[:3], *lse.stride()[:3], *block_out.stride()[:3], *block_lse.stride()[:3],
        dim, padded, tile, enable_fp_fusion=False,  # a fused multiply-add would round once where torch rounds twice
    )  # fmt: skip


def _tiles(x: Tensor, elements: int) -> tuple[int, int, int]:
    """Rows of x (B, S, H, D), D as a power of two, and rows of a tile of so many elements."""
    padded = triton.next_power_of_2(x.shape[-1])
    return x.shape[:-1].numel(), padded, max(1, elements // padded)


@triton.jit
def _rows(rows, length, heads, dim: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr):
    # Of a program: which of its rows there are, the batch, token and head of each, columns, which elements there are.
    row = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    column = tl.arange(0, padded)
    inside = (row < rows)[:, None] & (column < dim)[None, :]
    return row < rows, row // (heads * length), (row // heads) % length, row % heads, column, inside


@triton.jit(do_not_specialize=COUNTS)
def _merge(
    out, lse, block_out, block_lse, rows, length, heads, out_batch, out_row, out_head, lse_batch, lse_row, lse_head,
    block_batch, block_row, block_head, block_lse_batch, block_lse_row, block_lse_head,
    dim: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    present, batch, token, head, column, inside = _rows(rows, length, heads, dim, padded, tile)
    out += (batch * out_batch + token * out_row + head * out_head)[:, None] + column[None, :]
    block_out += (batch * block_batch + token * block_row + head * block_head)[:, None] + column[None, :]
    lse += batch * lse_batch + token * lse_row + head * lse_head
    block_lse += batch * block_lse_batch + token * block_lse_row + head * block_lse_head
    new = tl.load(block_out, mask=inside).to(tl.float32)
    value, joint = tl.load(out, mask=inside), tl.load(lse, mask=present)
    value, joint = _joined(value, joint, new, tl.load(block_lse, mask=present))
    tl.store(out, value, mask=inside)
    tl.store(lse, joint, mask=present)


@triton.jit
def _joined(value, joint, new, block_lse):
    gap = block_lse - joint
    weight = tl.div_rn(1.0, 1.0 + libdevice.exp(-gap))  # torch.sigmoid
    log_share = tl.minimum(-gap, 0.0) - libdevice.log1p(libdevice.exp(-tl.abs(gap)))
    return value - weight[:, None] * (value - new), joint - log_share  # logsigmoid of the lse so far over the block's
