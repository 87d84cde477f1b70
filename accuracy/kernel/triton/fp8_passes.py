"""Triton: what torch does around products in 8 bits in several passes over memory, in one, with torch's bits.

The largest values of blocks of tokens, the division by a scale with the cast, a copy transposed, and sums of products
of codes, each cut off as a Hopper tensor core does (`accuracy.kernel.lowp.tensor_core`: sums of 32 whole numbers are
exact in any order).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from accuracy.core.quantisation import STEP

TYPES = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}
TOKENS = 64
"""Tokens of a tile."""
TILE = 16
"""Rows, and columns, of a tile of sums."""


def largest_values(rows: Tensor) -> Tensor:
    """The largest |x| of each `TOKENS` tokens of (B, H, S, D), D contiguous: (B, H, n), float32; NaN beside a NaN."""
    batch, heads, length, dim = rows.shape
    found = torch.empty(batch, heads, triton.cdiv(length, TOKENS), dtype=torch.float32, device=rows.device)
    _largest[(found.numel(),)](rows, found, heads, length, *rows.stride()[:3], dim, triton.next_power_of_2(dim), TOKENS)
    return found


def divided(rows: Tensor, divisors: Tensor, tokens: int, dtype: torch.dtype) -> Tensor:
    """(B, H, S, D), contiguous, in an 8-bit dtype, of rows over divisors (B, H, n), each of `tokens` tokens: all, or a
    multiple of `TOKENS`."""
    batch, heads, length, dim = rows.shape
    codes = torch.empty(rows.shape, dtype=dtype, device=rows.device)
    _divided[(triton.cdiv(length, TOKENS) * batch * heads,)](
        rows, divisors, codes, heads, length, *rows.stride()[:3], divisors.shape[2], tokens, dim,
        triton.next_power_of_2(dim), TOKENS, TYPES[dtype],
    )  # fmt: skip
    return codes


def transposed(codes: Tensor, length: int, *, interleaved: bool) -> Tensor:
    """(B, H, D, length), contiguous, of codes (B, H, S, D), contiguous, S <= length; see `Operand`."""
    batch, heads, tokens, dim = codes.shape
    copy = torch.empty(batch, heads, dim, length, dtype=torch.uint8, device=codes.device)
    _transposed[(triton.cdiv(length, TOKENS) * batch * heads,)](
        codes.view(torch.uint8), copy, tokens, length, dim, triton.next_power_of_2(dim), TOKENS, interleaved
    )
    return copy.view(codes.dtype)


@triton.jit(do_not_specialize=["heads", "length"])
def _largest(
    rows, found, heads, length, batch_step, head_step, row_step,
    dim: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, tile)
    plane, first = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * tile
    rows += plane // heads * batch_step + plane % heads * head_step + first.to(tl.int64) * row_step
    row, column = tl.arange(0, tile)[:, None], tl.arange(0, padded)[None, :]
    x = tl.load(rows + row * row_step + column, mask=(row < length - first) & (column < dim), other=0.0).to(tl.float32)
    most = tl.max(tl.max(tl.abs(x), 1), 0)
    unknown = tl.max(tl.max((x != x).to(tl.int32), 1), 0)
    tl.store(found + tl.program_id(0), tl.where(unknown > 0, float("nan"), most))


@triton.jit(do_not_specialize=["heads", "length", "blocks", "tokens"])
def _divided(
    rows, divisors, codes, heads, length, batch_step, head_step, row_step, blocks, tokens,
    dim: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr, kind: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(length, tile)
    plane, first = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * tile
    rows += plane // heads * batch_step + plane % heads * head_step + first.to(tl.int64) * row_step
    codes += (plane * length + first) * dim
    row, column = tl.arange(0, tile)[:, None], tl.arange(0, padded)[None, :]
    inside = (row < length - first) & (column < dim)
    x = tl.load(rows + row * row_step + column, mask=inside, other=0.0).to(tl.float32)
    x = tl.div_rn(x, tl.load(divisors + plane * blocks + first // tokens))
    tl.store(codes + row * dim + column, x.to(kind), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _transposed(
    codes, copy, tokens, length, dim: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr, interleaved: tl.constexpr
):  # fmt: skip
    tiles = tl.cdiv(length, tile)
    plane, first = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * tile
    place, column = tl.arange(0, tile), tl.arange(0, padded)[None, :]
    token = place
    if interleaved:  # bits 3, 2 and 1 of the place are bits 2, 1 and 3 of the token
        token = (place // 16 * 16) + (place // 2 % 2 * 8) + (place // 4 % 4 * 2) + place % 2
    codes += (plane * tokens + first) * dim
    x = tl.load(codes + token[:, None] * dim + column, mask=(token < tokens - first)[:, None] & (column < dim), other=0)
    copy += plane * dim * length + first
    tl.store(copy + column * length + place[:, None], x, mask=(place < length - first)[:, None] & (column < dim))


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
