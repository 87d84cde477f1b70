"""Triton: gradients of FP8 attention, each sum in one order: a kernel for dq or the largest |dS|, one for dk and dv.

dq = scale sum_j dS_j k_j: one program for each tile of rows. dv = sum_i p_i dout_i and dk = scale sum_i dS_i q_i: one
for each tile of keys, the query heads of a group one after another. Weights and dS are times P's prescale, 2^shift,
until the sums are stored.
"""

import triton
import triton.language as tl
from _fp8_product import accumulate, load_columns

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


@triton.jit(do_not_specialize=["rows", "keys", "heads", "group", "q_tokens", "k_tokens", "q_blocks", "k_blocks"])
def key_gradient_kernel(
    dk, dv, largest, dout, q, k, v, dout_columns, q_columns, lse_bits, delta, do_scale, q_scale, k_scale, v_scale,
    scale, statistic_head, scale_bits, shift, rows, keys, heads, group, q_blocks, k_blocks, q_tokens, k_tokens,
    q_column,
    dk_batch, dk_row, dk_head, dv_batch, dv_row, dv_head, dout_batch, dout_row, dout_head, q_batch, q_row, q_head,
    k_batch, k_row, k_head, v_batch, v_row, v_head,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr,
    slope_type: tl.constexpr, limit: tl.constexpr, own: tl.constexpr, score_terms: tl.constexpr,
    weight_type: tl.constexpr, terms: tl.constexpr, every: tl.constexpr,
):  # fmt: skip
    """Under a causal mask the first keys have the most rows: they go first."""
    tiles = tl.cdiv(keys, key_tile)
    first_key = tl.program_id(0) % tiles * key_tile
    heads_kv = heads // group
    plane = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head_kv, begin = plane // heads_kv, plane % heads_kv, first_key.to(tl.int64)
    column, present = first_key + tl.arange(0, key_tile), keys - first_key
    key = load_rows(
        k + batch * k_batch + head_kv * k_head + begin * k_row, k_row, present, key_tile, dim, padded, False
    )
    value = load_rows(
        v + batch * v_batch + head_kv * v_head + begin * v_row, v_row, present, key_tile, dim, padded, False
    )
    of_keys = plane * k_blocks + first_key // k_tokens
    key_unit, value_unit = tl.load(k_scale + of_keys) * scale_bits, tl.load(v_scale + of_keys)
    dk_total, dk_partial = tl.zeros((key_tile, padded), tl.float32), tl.zeros((key_tile, padded), tl.float32)
    dv_total, dv_partial = tl.zeros((key_tile, padded), tl.float32), tl.zeros((key_tile, padded), tl.float32)
    begin_row = tl.maximum(first_key + rows - keys, 0) // row_tile * row_tile if causal else 0
    each = tl.cdiv(tl.maximum(rows - begin_row, 0), row_tile)
    for index in tl.range(0, group * each):
        first = begin_row + index % each * row_tile
        head = tl.cast(head_kv * group + index // each, tl.int64)
        query_plane, place, row = batch * heads + head, tl.cast(first, tl.int64), first + tl.arange(0, row_tile)
        query = load_rows(
            q + batch * q_batch + head * q_head + place * q_row, q_row, rows - first, row_tile, dim, padded, False
        )
        slope_out = load_rows(
            dout + batch * dout_batch + head * dout_head + place * dout_row, dout_row, rows - first, row_tile,
            dim, padded, False,
        )  # fmt: skip
        of_rows = query_plane * q_blocks + first // q_tokens
        query_unit, do_unit = tl.load(q_scale + of_rows), tl.load(do_scale + of_rows)
        visible = column[None, :] <= last_keys(row, rows, keys, causal)[:, None]
        weights, slope = slope_of(
            query, key, slope_out, value, query_unit * key_unit, do_unit * value_unit,
            tl.load(lse_bits + query_plane * statistic_head + row), tl.load(delta + query_plane * statistic_head + row),
            visible, shift, score_terms,
        )  # fmt: skip
        turned = load_columns(
            dout_columns + query_plane * dim * q_column + place, q_column, rows - first, row_tile, dim, padded
        )
        dv_total, dv_partial = accumulate(
            dv_total, dv_partial, tl.trans(weights.to(weight_type)), turned, do_unit, index, terms, every
        )
        codes, slope_unit = cast_slope(slope, tl.load(largest + query_plane), limit, slope_type, own)
        turned = load_columns(
            q_columns + query_plane * dim * q_column + place, q_column, rows - first, row_tile, dim, padded
        )
        dk_total, dk_partial = accumulate(
            dk_total, dk_partial, tl.trans(codes), turned, slope_unit * query_unit, index, terms, every
        )
    dk_total += dk_partial
    dv_total += dv_partial
    if every != 1:
        dk_total *= tl.load(largest) / limit * tl.load(q_scale)
        dv_total *= tl.load(do_scale)
    dk += batch * dk_batch + head_kv * dk_head + begin * dk_row
    dv += batch * dv_batch + head_kv * dv_head + begin * dv_row
    store_rows(dk, dk_row, present, dk_total * (scale * tl.exp2(-shift)), key_tile, dim, padded)
    store_rows(dv, dv_row, present, dv_total * tl.exp2(-shift), key_tile, dim, padded)
