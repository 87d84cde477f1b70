"""Triton: sums of products of codes, each cut off as a Hopper tensor core does, in one pass over memory, with the bits
of `accuracy.kernel.lowp.tensor_core`: sums of 32 whole numbers are exact in any order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from accuracy.core.quantisation import STEP

TILE = 16
"""Rows, and columns, of a tile of sums."""


def added(kept: Tensor, left: Tensor, right: Tensor, least: tuple[int, int], bits: int) -> Tensor:
    """kept (..., M, N) with left (..., M, K) times right (..., K, N) on top, all float32, in steps of 32 terms. least:
    the smallest exponents of the formats of left and right; bits: of the sum, significant ones."""
    lead, (rows, terms), columns = kept.shape[:-2], left.shape[-2:], right.shape[-1]
    planes = [x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]).contiguous() for x in (kept, left, right)]
    found = torch.empty_like(planes[0])
    grid = (triton.cdiv(rows, TILE) * triton.cdiv(columns, TILE), len(found))
    _added[grid](*planes, found, rows, columns, terms, *least, bits, TILE, STEP)
    return found.view(kept.shape)


@triton.jit(do_not_specialize=["rows", "columns", "terms"])
def _added(
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
