"""Triton: what comes before a product in 8 bits, each in one pass over memory: the largest values of blocks of tokens,
the division by a scale with the cast, and a copy transposed. The roundings are torch's, bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TYPES = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}
TOKENS = 64
"""Of a tile."""


def largest(rows: Tensor) -> Tensor:
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
