"""Triton: attention with FP8 products on tensor cores, forward, as `forward.py` but for the scales.

Weights are 2^(s - m) times P's prescale, whose logarithm is added to the exponent: it costs nothing, and the sum of the
same weights takes it off out again. lse is of the weights before their cast.

What makes it fast on Hopper: q, k and v come through tensor descriptors (TMA), without masks; v's copy has its tokens
in the order in which a thread holds its weights (`Operand.interleaved`), so that they stay in its registers; a tile's
scale is one number; two blocks of 64 rows share a multiprocessor, one in its exponentials, the other in its products.
"""

import math

import torch
import triton
import triton.language as tl
from _fp8_product import accumulate, flush_of, in_order
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from accuracy.core.quantisation import Policy
from accuracy.kernel.lowp.operand import Operand
from accuracy.kernel.triton.tile import LN_2, LOG2_E, key_ranges, last_keys, store_rows, strides

TYPES = {"e4m3": tl.float8e4nv, "e5m2": tl.float8e5}
ROWS = 64
"""Rows of a tile: no more than the tokens of a block, so that they share a scale."""


def padded_dim(dim: int) -> int:
    """The power of two that a tile's columns are padded to, at least the 32 of an 8-bit product."""
    return max(32, triton.next_power_of_2(dim))


def described(codes: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """(..., n) contiguous, as a matrix whose tiles (rows, columns) the hardware loads; beyond it are zeros."""
    matrix = codes.reshape(-1, codes.shape[-1])
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])


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
    _forward[(triton.cdiv(rows, ROWS) * batch * heads,)](
        described(q.codes, ROWS, padded), described(k.codes, key_tile, padded),
        described(v.interleaved, padded, key_tile), out, lse, q.scales, k.scales, v.scales,
        scale * LOG2_E.value, math.log2(policy.p_prescale), rows, keys, heads, heads // heads_kv,
        q.scales.shape[-1], k.scales.shape[-1], q.tokens, k.tokens, *strides(out), dim, padded, ROWS, key_tile, causal,
        TYPES[policy.p], scores.imprecise, sums.imprecise, sums.every, policy.granularity == "block",
        num_warps=4, num_stages=2 if key_tile == 128 and sums.every == 1 else 3,
    )  # fmt: skip
    return out, lse


@triton.jit(do_not_specialize=["rows", "keys", "heads", "group", "q_tokens", "k_tokens", "q_blocks", "k_blocks"])
def _forward(
    q, k, v, out, lse, q_scale, k_scale, v_scale, scale, shift, rows, keys, heads, group,
    q_blocks, k_blocks, q_tokens, k_tokens, out_batch, out_row, out_head,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr,
    weight_type: tl.constexpr, score_terms: tl.constexpr, terms: tl.constexpr, every: tl.constexpr, own: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head. own: each tile of keys has scales of its own."""
    tiles = tl.cdiv(rows, row_tile)
    planes = tl.num_programs(0) // tiles
    # full: the tiles of a head side by side, which read the same keys; causal: the long ones of all heads first
    tile = tl.program_id(0) // planes if causal else tl.program_id(0) % tiles
    plane = tl.program_id(0) % planes if causal else tl.program_id(0) // tiles
    first_row = (tiles - 1 - tile) * row_tile
    head, wide = plane % heads, plane.to(tl.int64)
    key_plane = plane // heads * (heads // group) + head // group
    row = first_row + tl.arange(0, row_tile)
    k_scale += key_plane * k_blocks
    v_scale += key_plane * k_blocks
    query = q.load([plane * rows + first_row, 0])
    unit = tl.load(q_scale + plane * q_blocks + first_row // q_tokens) * scale
    if not own:
        unit = not_zero(unit * tl.load(k_scale))
    whole, end = key_ranges(first_row, rows, keys, row_tile, key_tile, causal)
    last = last_keys(row, rows, keys, causal)
    total = tl.zeros((row_tile, padded), tl.float32)
    partial = tl.zeros((row_tile, padded if every > 1 else 1), tl.float32)
    row_max = tl.full((row_tile,), float("-inf"), tl.float32)
    row_sum = tl.zeros((row_tile,), tl.float32)
    total, partial, row_max, row_sum = _over_keys(
        total, partial, row_max, row_sum, query, k, v, k_scale, v_scale, unit, shift, key_plane * keys, key_plane * dim,
        k_tokens, 0, whole, last, key_tile, weight_type, score_terms, terms, every, own, False,
    )  # fmt: skip
    total, partial, row_max, row_sum = _over_keys(
        total, partial, row_max, row_sum, query, k, v, k_scale, v_scale, unit, shift, key_plane * keys, key_plane * dim,
        k_tokens, whole, end, last, key_tile, weight_type, score_terms, terms, every, own, True,
    )  # fmt: skip
    if every > 1:
        total += partial
    divisor = tl.where(row_sum == 0.0, 1.0, row_sum)  # a row without a key has row_max -inf
    factor = (1.0 if own else tl.load(v_scale)) / divisor
    out += wide // heads * out_batch + wide % heads * out_head + first_row.to(tl.int64) * out_row
    store_rows(out, out_row, rows - first_row, total * factor[:, None], row_tile, dim, padded)
    tl.store(lse + wide * rows + row, (row_max + tl.log2(divisor) - shift) * LN_2, mask=row < rows)


@triton.jit
def not_zero(unit):
    """A unit of 0 (q or k all zeros) has scores of 0, and -inf times 0 is no number."""
    return tl.where(unit == 0.0, 1.0, unit)


@triton.jit
def _over_keys(
    total, partial, row_max, row_sum, query, k, v, k_scale, v_scale, query_unit, shift, key_row, value_row, k_tokens,
    begin, end, last,
    key_tile: tl.constexpr, weight_type: tl.constexpr, score_terms: tl.constexpr, terms: tl.constexpr,
    every: tl.constexpr, own: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Go on over keys [begin, end). masked: some rows do not see them all, or they are of another head or none."""
    for first in tl.range(begin, end, key_tile, num_stages=1 if masked else None):  # see `key_ranges`
        scores = tl.dot(query, tl.trans(k.load([key_row + first, 0])), max_num_imprecise_acc=score_terms)
        if masked:
            visible = (first + tl.arange(0, key_tile))[None, :] <= last[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        unit = not_zero(query_unit * tl.load(k_scale + first // k_tokens)) if own else query_unit
        new_max = tl.maximum(row_max, tl.max(scores, 1) * unit)
        base = tl.where(new_max == float("-inf"), 0.0, new_max) if masked else new_max  # a row without a key yet
        weights = tl.exp2(scores * unit - (base - shift)[:, None])
        fade = tl.exp2(row_max - base)
        row_sum = row_sum * fade + tl.sum(weights, 1)
        if every > 1:
            partial *= fade[:, None]
        value = tl.trans(v.load([value_row, first]))
        codes = in_order(weights).to(weight_type)  # behind the load: else its halves are packed behind the wait for it
        total, partial = accumulate(
            total * fade[:, None], partial, codes, value,
            tl.load(v_scale + first // k_tokens) if own else None, first // key_tile, terms, every,
        )  # fmt: skip
        row_max = new_max
    return total, partial, row_max, row_sum
