"""What torch does in several passes over memory as one CUDA kernel each, with the same roundings in the same order: the
sigmoid merge (torch: eight kernels), and sums of products that are cut off as a Hopper tensor core does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from accuracy.core.quantisation import STEP

BLOCK_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MERGE_ELEMENTS = 4096  # of a tile
CUT_TILE = 16  # rows, and columns, of a tile of sums that are cut off
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


def add_cut(kept: Tensor, left: Tensor, right: Tensor, least: tuple[int, int], bits: int) -> Tensor:
    """kept (..., M, N) with left (..., M, K) times right (..., K, N) on top, all float32, in steps of 32 terms,
    with the bits of `accuracy.kernel.lowp.tensor_core`: sums of 32 whole numbers are exact in any order. least: the
    smallest exponents of the formats of left and right; bits: of the sum, significant ones."""
    lead, (rows, terms), columns = kept.shape[:-2], left.shape[-2:], right.shape[-1]
    planes = [x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]).contiguous() for x in (kept, left, right)]
    found = torch.empty_like(planes[0])
    grid = (triton.cdiv(rows, CUT_TILE) * triton.cdiv(columns, CUT_TILE), len(found))
    _add_cut[grid](*planes, found, rows, columns, terms, *least, bits, CUT_TILE, STEP)
    return found.view(kept.shape)


@triton.jit(do_not_specialize=["rows", "columns", "terms"])
def _add_cut(
    kept, left, right, found, rows, columns, terms, least_left: tl.constexpr, least_right: tl.constexpr,
    bits: tl.constexpr, tile: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """One tile of one plane."""
    across = tl.cdiv(columns, tile)
    plane = tl.program_id(1).to(tl.int64)
    row = (tl.program_id(0) // across * tile + tl.arange(0, tile))[:, None]
    column = (tl.program_id(0) % across * tile + tl.arange(0, tile))[None, :]
    here = plane * rows * columns + row * columns + column
    inside = (row < rows) & (column < columns)
    total = tl.load(kept + here, mask=inside, other=0.0)
    left += plane * rows * terms
    right += plane * terms * columns
    for begin in range(0, terms, step):
        term = begin + tl.arange(0, step)
        of_rows = tl.load(left + row * terms + term[None, :], mask=(row < rows) & (term < terms)[None, :], other=0.0)
        there = term[:, None] * columns + column
        of_columns = tl.load(right + there, mask=(term < terms)[:, None] & (column < columns), other=0.0)
        sums = _exponent(of_rows, least_left)[:, :, None] + _exponent(of_columns, least_right)[None, :, :]
        largest = _within(tl.maximum(tl.max(sums, 1), _exponent(total, -126)))
        units = _power_of_two(bits - 1 - largest)  # to units of the last place
        whole = (of_rows[:, :, None] * of_columns[None, :, :] * units[:, None, :]).to(tl.int32)  # cut off towards zero
        unknown = total * 0.0 + tl.sum(of_rows * 0.0, 1)[:, None] + tl.sum(of_columns * 0.0, 0)[None, :]  # 0, or NaN
        count = tl.sum(whole, 1) + (total * units).to(tl.int32)
        total = count.to(tl.float32) * _power_of_two(largest - bits + 1)
        last = _within(_exponent(total, -126))
        total = (total * _power_of_two(bits - 1 - last)).to(tl.int32).to(tl.float32) * _power_of_two(last - bits + 1)
        total += unknown
    tl.store(found + here, total, mask=inside)


@triton.jit
def _exponent(x, least: tl.constexpr):
    """Of a number of a format, whose subnormal ones have the smallest; -90 of 0."""
    found = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 127
    return tl.where(x == 0.0, -90, tl.maximum(found, least))


@triton.jit
def _within(exponent):
    return tl.minimum(tl.maximum(exponent, -100), 100)


@triton.jit
def _power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)
