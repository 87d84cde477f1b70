"""Triton: dq = scale sum_j dS_j k_j with FP8 products, one program for each tile of rows; or the largest |dS| alone.

dS here is 2^shift dS, shift the logarithm of P's prescale, until the sum is stored.
"""

import triton
import triton.language as tl

from accuracy.kernel.triton.fp8_product import accumulate, load_columns
from accuracy.kernel.triton.tile import last_keys, load_rows, store_rows


@triton.jit
def slope_of(
    query, key, slope_out, value, unit, value_unit, row_bits, mean, visible, shift, score_terms: tl.constexpr
):  # fmt: skip
    """(weights, dS) of a tile (rows, keys), both times 2^shift. unit, value_unit: scales of scores and of dout v^T."""
    scores = tl.dot(query, tl.trans(key), max_num_imprecise_acc=score_terms)
    weights = tl.where(visible, tl.exp2(scores * unit + shift - row_bits[:, None]), 0.0)
    dweights = tl.dot(slope_out, tl.trans(value), max_num_imprecise_acc=score_terms)
    return weights, weights * (dweights * value_unit - mean[:, None])


@triton.jit
def cast_slope(slope, largest, limit: tl.constexpr, kind: tl.constexpr, own: tl.constexpr):
    """dS as codes, and their scale. own: by the tile's largest value, not by the given one."""
    if own:
        largest = tl.max(tl.abs(slope))
    scale = largest / limit
    return (slope / tl.where(scale == 0.0, 1.0, scale)).to(kind), scale


@triton.jit(do_not_specialize=["rows", "keys", "heads", "group", "q_tokens", "k_tokens", "q_blocks", "k_blocks"])
def query_gradient_kernel(
    dq, largest, dout, q, k, v, k_columns, lse_bits, delta, do_scale, q_scale, k_scale, v_scale,
    scale, statistic_head, scale_bits, shift, rows, keys, heads, group, q_blocks, k_blocks, q_tokens, k_tokens,
    k_column,
    dq_batch, dq_row, dq_head, dout_batch, dout_row, dout_head, q_batch, q_row, q_head,
    k_batch, k_row, k_head, v_batch, v_row, v_head,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr,
    slope_type: tl.constexpr, limit: tl.constexpr, own: tl.constexpr, score_terms: tl.constexpr,
    terms: tl.constexpr, every: tl.constexpr, find: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head; long rows first. find: store the largest |dS| of the tile in `largest`, no dq;
    else largest is (B, H), where it is not the tile's own."""
    tiles = tl.cdiv(rows, row_tile)
    tile = tiles - 1 - tl.program_id(0) % tiles
    first_row = tile * row_tile
    plane = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head, begin = plane // heads, plane % heads, first_row.to(tl.int64)
    key_plane = batch * (heads // group) + head // group
    row, present = first_row + tl.arange(0, row_tile), rows - first_row
    k += batch * k_batch + head // group * k_head
    v += batch * v_batch + head // group * v_head
    k_columns += key_plane * dim * k_column
    query = load_rows(q + batch * q_batch + head * q_head + begin * q_row, q_row, present, row_tile, dim, padded, False)
    slope_out = load_rows(
        dout + batch * dout_batch + head * dout_head + begin * dout_row, dout_row, present, row_tile, dim, padded, False
    )
    row_bits = tl.load(lse_bits + plane * statistic_head + row)
    mean = tl.load(delta + plane * statistic_head + row)
    of_rows = plane * q_blocks + first_row // q_tokens
    unit, do_unit = tl.load(q_scale + of_rows) * scale_bits, tl.load(do_scale + of_rows)
    last = last_keys(row, rows, keys, causal)
    end = tl.minimum(tl.maximum(first_row + row_tile + keys - rows, 0), keys) if causal else keys
    total = tl.zeros((row_tile, padded), tl.float32)
    partial = tl.zeros((row_tile, padded), tl.float32)
    most = tl.zeros((row_tile,), tl.float32)
    limit_of_all = 0.0 if find or own else tl.load(largest + plane)
    for first in tl.range(0, end, key_tile):
        place, of_keys = tl.cast(first, tl.int64), key_plane * k_blocks + first // k_tokens
        key = load_rows(k + place * k_row, k_row, keys - first, key_tile, dim, padded, False)
        value = load_rows(v + place * v_row, v_row, keys - first, key_tile, dim, padded, False)
        key_unit = tl.load(k_scale + of_keys)
        visible = (first + tl.arange(0, key_tile))[None, :] <= last[:, None]
        _, slope = slope_of(
            query, key, slope_out, value, unit * key_unit, do_unit * tl.load(v_scale + of_keys), row_bits, mean,
            visible, shift, score_terms,
        )  # fmt: skip
        if find:
            most = tl.maximum(most, tl.max(tl.abs(slope), 1))
        else:
            codes, slope_unit = cast_slope(slope, limit_of_all, limit, slope_type, own)
            turned = load_columns(k_columns + place, k_column, keys - first, key_tile, dim, padded)
            total, partial = accumulate(
                total, partial, codes, turned, slope_unit * key_unit, first // key_tile, terms, every
            )
    if find:
        tl.store(largest + plane * tiles + tile, tl.max(most, 0))
    else:
        total += partial
        if every != 1:
            total *= limit_of_all / limit * tl.load(k_scale)
        dq += batch * dq_batch + head * dq_head + begin * dq_row
        store_rows(dq, dq_row, present, total * (scale * tl.exp2(-shift)), row_tile, dim, padded)
