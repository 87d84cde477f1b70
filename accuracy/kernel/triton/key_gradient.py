"""Triton: dv = sum_i p_i dout_i and dk = scale sum_i dS_i q_i, one program for each tile of keys of a key/value head.

The query heads of a group are summed in the same float32 accumulators, in one order; p and dS are rounded to the
inputs' dtype, as in flash-attention. On request each tile's share of dq is added to memory as well, by atomic adds,
which finish in any order: the fused backward.
"""

import triton
import triton.language as tl
from torch import Tensor

from accuracy.kernel.triton.tile import LOG2_E, choose, last_keys, load_rows, store_rows, strides


def key_gradient(
    dk: Tensor, dv: Tensor, dq: Tensor | None, dout: Tensor, q: Tensor, k: Tensor, v: Tensor,
    lse_bits: Tensor, delta: Tensor, scale: float, causal: bool,
) -> None:  # fmt: skip
    """Fill dk, dv (B, Sk, Hk, D), in their dtype; add dq / scale to dq (B, Sq, H, D), contiguous, float32, or None.
    lse_bits, delta: as `row_statistics` gives them."""
    batch, rows, heads, dim = q.shape
    keys, heads_kv = k.shape[1:3]
    tiles, padded = choose("KEY_GRADIENT" if dq is None else "FUSED_GRADIENT", q)
    _key_gradient[(triton.cdiv(keys, tiles.keys) * batch * heads_kv,)](
        dk, dv, dq, dout, q, k, v, lse_bits, delta, delta.stride(1), scale, scale * LOG2_E.value,
        rows, keys, heads, heads // heads_kv,
        *strides(dq, dk, dv, dout, q, k, v), dim, padded, tiles.rows, tiles.keys, causal, dq is not None,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "keys", "heads", "group"])
def _key_gradient(
    dk, dv, dq, dout, q, k, v, lse_bits, delta, statistic_head, scale, scale_bits, rows, keys, heads, group,
    dq_batch, dq_row, dq_head, dk_batch, dk_row, dk_head, dv_batch, dv_row, dv_head, dout_batch, dout_row, dout_head,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr,
    with_dq: tl.constexpr,
):  # fmt: skip
    """One tile of keys of one key/value head. Under a causal mask the first keys have the most rows: they go first."""
    tiles = tl.cdiv(keys, key_tile)
    first_key = tl.program_id(0) % tiles * key_tile
    heads_kv = heads // group
    plane = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head_kv, begin = plane // heads_kv, plane % heads_kv, first_key.to(tl.int64)
    key_column, present = first_key + tl.arange(0, key_tile), keys - first_key
    k += batch * k_batch + head_kv * k_head + begin * k_row
    v += batch * v_batch + head_kv * v_head + begin * v_row
    key = load_rows(k, k_row, present, key_tile, dim, padded, False)
    value = load_rows(v, v_row, present, key_tile, dim, padded, False)
    lse_bits += (batch * heads + head_kv * group) * statistic_head
    delta += (batch * heads + head_kv * group) * statistic_head
    q += batch * q_batch + head_kv * group * q_head
    dout += batch * dout_batch + head_kv * group * dout_head
    if with_dq:
        dq += batch * dq_batch + head_kv * group * dq_head
    begin_row, whole, partial, masked_tiles = _row_ranges(first_key, rows, keys, row_tile, key_tile, causal)
    whole_tiles = tl.maximum(partial - whole, 0) // row_tile
    dk_total = tl.zeros((key_tile, padded), tl.float32)
    dv_total = tl.zeros((key_tile, padded), tl.float32)
    dk_total, dv_total = _over_rows(
        dk_total, dv_total, key, value, q, dout, dq, lse_bits, delta, statistic_head,
        q_row, q_head, dout_row, dout_head, dq_row, dq_head, key_column, whole, whole, partial, whole_tiles, group,
        rows, keys, scale_bits, dim, padded, row_tile, causal, with_dq, False,
    )  # fmt: skip
    dk_total, dv_total = _over_rows(
        dk_total, dv_total, key, value, q, dout, dq, lse_bits, delta, statistic_head,
        q_row, q_head, dout_row, dout_head, dq_row, dq_head, key_column, begin_row, whole, partial, masked_tiles, group,
        rows, keys, scale_bits, dim, padded, row_tile, causal, with_dq, True,
    )  # fmt: skip
    dk += batch * dk_batch + head_kv * dk_head + begin * dk_row
    dv += batch * dv_batch + head_kv * dv_head + begin * dv_row
    store_rows(dk, dk_row, present, dk_total * scale, key_tile, dim, padded)
    store_rows(dv, dv_row, present, dv_total, key_tile, dim, padded)


@triton.jit
def _row_ranges(first_key, rows, keys, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr):
    """Tiles of rows that see some of a tile of keys: (begin, whole, partial, masked), the first three in rows.

    Rows [whole, partial) see all of the keys; `masked` tiles are not so simple: those of [begin, whole), and the one at
    `partial` where the rows end inside of it. A tile of keys with some missing has no simple rows.
    """
    partial = rows // row_tile * row_tile
    end = tl.cdiv(rows, row_tile) * row_tile
    if causal:
        begin = tl.maximum(first_key + rows - keys, 0) // row_tile * row_tile
        whole = tl.cdiv(tl.maximum(first_key + key_tile - 1 + rows - keys, 0), row_tile) * row_tile
    else:
        begin = first_key * 0
        whole = first_key * 0
    whole = tl.where(first_key + key_tile > keys, end, tl.minimum(whole, end))
    masked = (whole - begin) // row_tile + tl.where(whole <= partial, (end - partial) // row_tile, 0)
    return begin, whole, partial, masked


@triton.jit
def _over_rows(
    dk_total, dv_total, key, value, q, dout, dq, lse_bits, delta, statistic_head,
    q_row, q_head, dout_row, dout_head, dq_row, dq_head, key_column, begin, whole, partial, tiles, group,
    rows, keys, scale_bits,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, causal: tl.constexpr, with_dq: tl.constexpr,
    masked: tl.constexpr,
):  # fmt: skip
    """Add the share of `tiles` tiles of rows of each head of a group, from `begin` on; masked: `partial` after `whole`.
    One loop over heads and tiles, so that the pipeline does not run dry at the end of each head."""
    for index in tl.range(0, group * tiles, num_stages=1 if masked else None):
        member = index // tiles
        first = begin + (index - member * tiles) * row_tile
        if masked:
            first = tl.where(first < whole, first, partial)
        head, place = tl.cast(member, tl.int64), tl.cast(first, tl.int64)
        row = first + tl.arange(0, row_tile)
        query = load_rows(q + head * q_head + place * q_row, q_row, rows - first, row_tile, dim, padded, not masked)
        slope_out = load_rows(
            dout + head * dout_head + place * dout_row, dout_row, rows - first, row_tile, dim, padded, not masked
        )
        row_bits = tl.load(lse_bits + head * statistic_head + row)
        mean = tl.load(delta + head * statistic_head + row)
        scores = tl.dot(key, tl.trans(query), input_precision="ieee")
        weights = tl.exp2(scores * scale_bits - row_bits[None, :])
        if masked:
            visible = key_column[:, None] <= last_keys(row, rows, keys, causal)[None, :]
            weights = tl.where(visible, weights, 0.0)
        dv_total = tl.dot(weights.to(query.dtype), slope_out, dv_total, input_precision="ieee")
        slope = weights * (tl.dot(value, tl.trans(slope_out), input_precision="ieee") - mean[None, :])
        slope = slope.to(query.dtype)
        dk_total = tl.dot(slope, query, dk_total, input_precision="ieee")
        if with_dq:
            column = tl.arange(0, padded)
            inside = (row < rows)[:, None] & (column < dim)[None, :]
            share = tl.dot(tl.trans(slope), key, input_precision="ieee")
            places = dq + head * dq_head + place * dq_row + tl.arange(0, row_tile)[:, None] * dq_row + column[None, :]
            tl.atomic_add(places, share, mask=inside, sem="relaxed")
    return dk_total, dv_total
