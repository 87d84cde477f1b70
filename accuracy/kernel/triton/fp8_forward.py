"""Triton: attention with FP8 products on tensor cores, forward, as `forward.py` but for the scales.

Weights are 2^(s - m) times P's prescale, whose logarithm is added to the exponent: it costs nothing, and the sum of the
same weights takes it off out again. lse is of the weights before their cast.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from accuracy.core.quantisation import Policy
from accuracy.kernel.block.fp8_operand import Operand
from accuracy.kernel.triton.fp8_product import accumulate, flush_of, load_columns
from accuracy.kernel.triton.tile import LN_2, LOG2_E, key_ranges, last_keys, load_rows, store_rows, strides

TYPES = {"e4m3": tl.float8e4nv, "e5m2": tl.float8e5}
ROWS = 128


def padded_dim(dim: int) -> int:
    """The power of two that a tile's columns are padded to, at least the 32 of an 8-bit product."""
    return max(32, triton.next_power_of_2(dim))


def attend(
    q: Operand, k: Operand, v: Operand, policy: Policy, key_tile: int, *,
    scale: float, causal: bool, out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out (B, Sq, H, D) in `out_dtype` and lse (B, H, Sq), float32; rows that see no key: out 0, lse -inf. Raises
    ValueError where scale is not above 0."""
    if scale <= 0:  # the largest score must be that of the largest product
        raise ValueError(f"scale={scale}; allowed: above 0")
    batch, heads, rows, dim = q.codes.shape
    heads_kv, keys = k.codes.shape[1:3]
    out = torch.empty(batch, rows, heads, dim, dtype=out_dtype, device=q.codes.device)
    lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.codes.device)
    padded = padded_dim(dim)
    scores, sums = flush_of(policy, padded, over_tiles=False), flush_of(policy, key_tile)
    row_tile = ROWS if padded <= 128 else ROWS // 2
    _forward[(triton.cdiv(rows, row_tile) * batch * heads,)](
        q.by_token, k.by_token, v.transposed, out, lse, q.scales, k.scales, v.scales,
        scale * LOG2_E.value, math.log2(policy.p_prescale), rows, keys, heads, heads // heads_kv,
        q.scales.shape[-1], k.scales.shape[-1], q.tokens, k.tokens, v.transposed.stride(2),
        *strides(q.by_token, k.by_token, out), dim, padded, row_tile, key_tile, causal, TYPES[policy.p],
        scores.imprecise, sums.imprecise, sums.every, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out, lse


@triton.jit(do_not_specialize=["rows", "keys", "heads", "group", "q_tokens", "k_tokens", "q_blocks", "k_blocks"])
def _forward(
    q, k, v, out, lse, q_scale, k_scale, v_scale, scale, shift, rows, keys, heads, group,
    q_blocks, k_blocks, q_tokens, k_tokens, v_row,
    q_batch, q_row, q_head, k_batch, k_row, k_head, out_batch, out_row, out_head,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr,
    weight_type: tl.constexpr, score_terms: tl.constexpr, terms: tl.constexpr, every: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head; long rows first."""
    tiles = tl.cdiv(rows, row_tile)
    first_row = (tiles - 1 - tl.program_id(0) % tiles) * row_tile
    plane = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head, begin = plane // heads, plane % heads, first_row.to(tl.int64)
    key_plane = batch * (heads // group) + head // group
    row, present = first_row + tl.arange(0, row_tile), rows - first_row
    q += batch * q_batch + head * q_head + begin * q_row
    k += batch * k_batch + head // group * k_head
    v += key_plane * dim * v_row
    out += batch * out_batch + head * out_head + begin * out_row
    k_scale += key_plane * k_blocks
    v_scale += key_plane * k_blocks
    query = load_rows(q, q_row, present, row_tile, dim, padded, False)
    factor = tl.load(q_scale + plane * q_blocks + row // q_tokens, mask=row < rows, other=0.0) * scale
    whole, end = key_ranges(first_row, rows, keys, row_tile, key_tile, causal)
    last = last_keys(row, rows, keys, causal)
    total = tl.zeros((row_tile, padded), tl.float32)
    partial = tl.zeros((row_tile, padded), tl.float32)
    row_max = tl.full((row_tile,), float("-inf"), tl.float32)
    row_sum = tl.zeros((row_tile,), tl.float32)
    total, partial, row_max, row_sum = _over_keys(
        total, partial, row_max, row_sum, query, k, v, k_scale, v_scale, factor, shift, k_row, v_row, k_tokens,
        0, whole, keys, last, dim, padded, key_tile, weight_type, score_terms, terms, every, False,
    )  # fmt: skip
    total, partial, row_max, row_sum = _over_keys(
        total, partial, row_max, row_sum, query, k, v, k_scale, v_scale, factor, shift, k_row, v_row, k_tokens,
        whole, end, keys, last, dim, padded, key_tile, weight_type, score_terms, terms, every, True,
    )  # fmt: skip
    total += partial
    if every != 1:
        total *= tl.load(v_scale)
    divisor = tl.where(row_sum == 0.0, 1.0, row_sum)  # a row without a key has row_max -inf
    store_rows(out, out_row, present, total / divisor[:, None], row_tile, dim, padded)
    tl.store(lse + plane * rows + row, (row_max + tl.log2(divisor) - shift) * LN_2, mask=row < rows)


@triton.jit
def _over_keys(
    total, partial, row_max, row_sum, query, k, v, k_scale, v_scale, factor, shift, k_row, v_row, k_tokens,
    begin, end, keys, last,
    dim: tl.constexpr, padded: tl.constexpr, key_tile: tl.constexpr, weight_type: tl.constexpr,
    score_terms: tl.constexpr, terms: tl.constexpr, every: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Go on over keys [begin, end); a tile's keys share a scale. masked: some rows do not see them all."""
    for first in tl.range(begin, end, key_tile, num_stages=1 if masked else None):  # see `key_ranges`
        place = tl.cast(first, tl.int64)
        key = load_rows(k + place * k_row, k_row, keys - first, key_tile, dim, padded, not masked)
        value = load_columns(v + place, v_row, keys - first, key_tile, dim, padded)
        scores = tl.dot(query, tl.trans(key), max_num_imprecise_acc=score_terms)
        if masked:
            visible = (first + tl.arange(0, key_tile))[None, :] <= last[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        unit = factor * tl.load(k_scale + first // k_tokens)
        # a unit of 0 (q or k all zeros) has scores of 0, and -inf times 0 is no number
        unit = tl.where(unit == 0.0, 1.0, unit)
        new_max = tl.maximum(row_max, tl.max(scores, 1) * unit)
        base = tl.where(new_max == float("-inf"), 0.0, new_max) if masked else new_max  # a row without a key yet
        weights = tl.exp2(scores * unit[:, None] - (base - shift)[:, None])
        fade = tl.exp2(row_max - base)
        row_sum = row_sum * fade + tl.sum(weights, 1)
        total, partial = accumulate(
            total * fade[:, None], partial * fade[:, None], weights.to(weight_type), value,
            tl.load(v_scale + first // k_tokens), first // key_tile, terms, every,
        )  # fmt: skip
        row_max = new_max
    return total, partial, row_max, row_sum
