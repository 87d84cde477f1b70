"""Triton: the backward in two forms, split (two kernels, seven products, deterministic) and fused (one kernel, five).

Split: dq by a program for each tile of rows, dk and dv by one for each tile of keys of a key/value head, every sum in
one order. Fused: the latter adds each tile's share of dq to memory as well, by atomic adds, which finish in any order.
Which is faster depends on how many programs there are to fill the device: see jax-triton's pull request 177. The query
heads of a group are summed in the same float32 accumulators; p and dS = p (dout v^T - delta) are rounded to the inputs'
dtype before they meet dout, q and k, as flash-attention does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from accuracy.kernel.triton.tile import (
    LOG2_E,
    ROWS_MULTIPLE,
    choose,
    key_ranges,
    last_keys,
    load_rows,
    padded_dim,
    store_rows,
    strides,
)


def row_statistics(dout: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """log2(e) lse and delta = sum_d dout out, float32 (B, H, S'), S' = S up to a multiple of `ROWS_MULTIPLE`.

    A padding row has lse +inf, so that its weights are zero without a mask, and every row of a tile may be loaded.

    dout, out: (B, S, H, D), whose dtypes may differ; lse: (B, H, S), natural.
    """
    batch, rows, heads, dim = dout.shape
    stored = triton.cdiv(rows, ROWS_MULTIPLE) * ROWS_MULTIPLE
    lse_bits, delta = (torch.empty(batch, heads, stored, dtype=torch.float32, device=dout.device) for _ in range(2))
    padded = padded_dim(dim)
    tile = 4096 // padded
    _row_statistics[(triton.cdiv(stored, tile) * batch * heads,)](
        lse_bits, delta, dout, out, lse, rows, stored, heads,
        *strides(dout, out), *lse.stride(), dim, padded, tile,
    )  # fmt: skip
    return lse_bits, delta


@triton.jit(do_not_specialize=["rows", "heads", "lse_batch", "lse_head", "lse_row"])
def _row_statistics(
    lse_bits, delta, dout, out, lse, rows, stored, heads,
    dout_batch, dout_row, dout_head, out_batch, out_row, out_head, lse_batch, lse_head, lse_row,
    dim: tl.constexpr, padded: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(stored, tile)
    first = tl.program_id(0) % tiles * tile
    plane = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head, begin = plane // heads, plane % heads, first.to(tl.int64)
    dout += batch * dout_batch + head * dout_head + begin * dout_row
    out += batch * out_batch + head * out_head + begin * out_row
    left = load_rows(dout, dout_row, rows - first, tile, dim, padded, False).to(tl.float32)
    right = load_rows(out, out_row, rows - first, tile, dim, padded, False).to(tl.float32)
    row = first + tl.arange(0, tile)
    places = lse + batch * lse_batch + head * lse_head + row.to(tl.int64) * lse_row
    bits = tl.load(places, mask=row < rows, other=float("inf")) * LOG2_E
    tl.store(lse_bits + plane * stored + row, bits, mask=row < stored)
    tl.store(delta + plane * stored + row, tl.sum(left * right, 1), mask=row < stored)


def gradients(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *,
    scale: float, causal: bool, gradient_dtype: torch.dtype, fused: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See `accuracy.kernel.base.Kernel.backward`. Each gradient is rounded once, to `gradient_dtype`; if fused, dq is
    summed in float32 memory, then scaled and rounded."""
    lse_bits, delta = row_statistics(dout, out, lse)
    dq, dk, dv = (torch.empty(x.shape, dtype=gradient_dtype, device=x.device) for x in (q, k, v))  # contiguous
    total = torch.zeros(q.shape, dtype=torch.float32, device=q.device) if fused else None
    key_gradient(dk, dv, total, dout, q, k, v, lse_bits, delta, scale, causal)
    if total is None:
        query_gradient(dq, dout, q, k, v, lse_bits, delta, scale, causal)
    else:
        torch.mul(total, scale, out=dq)
    return dq, dk, dv


def query_gradient(
    dq: Tensor, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, lse_bits: Tensor, delta: Tensor,
    scale: float, causal: bool,
) -> None:  # fmt: skip
    """Fill dq (B, Sq, H, D), in its dtype. lse_bits, delta: as `row_statistics` gives them."""
    batch, rows, heads, dim = q.shape
    tiles, padded = choose("QUERY_GRADIENT", q)
    _query_gradient[(triton.cdiv(rows, tiles.rows) * batch * heads,)](
        dq, dout, q, k, v, lse_bits, delta, delta.stride(1), scale, scale * LOG2_E.value,
        rows, k.shape[1], heads, heads // k.shape[2],
        *strides(dq, dout, q, k, v), dim, padded, tiles.rows, tiles.keys, causal,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "keys", "heads", "group"])
def _query_gradient(
    dq, dout, q, k, v, lse_bits, delta, statistic_head, scale, scale_bits, rows, keys, heads, group,
    dq_batch, dq_row, dq_head, dout_batch, dout_row, dout_head, q_batch, q_row, q_head,
    k_batch, k_row, k_head, v_batch, v_row, v_head,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head; long rows first."""
    tiles = tl.cdiv(rows, row_tile)
    first_row = (tiles - 1 - tl.program_id(0) % tiles) * row_tile
    plane = (tl.program_id(0) // tiles).to(tl.int64)
    batch, head, begin = plane // heads, plane % heads, first_row.to(tl.int64)
    row, present = first_row + tl.arange(0, row_tile), rows - first_row
    q += batch * q_batch + head * q_head + begin * q_row
    dout += batch * dout_batch + head * dout_head + begin * dout_row
    dq += batch * dq_batch + head * dq_head + begin * dq_row
    k += batch * k_batch + head // group * k_head
    v += batch * v_batch + head // group * v_head
    query = load_rows(q, q_row, present, row_tile, dim, padded, False)
    slope_out = load_rows(dout, dout_row, present, row_tile, dim, padded, False)
    row_bits = tl.load(lse_bits + plane * statistic_head + row)
    mean = tl.load(delta + plane * statistic_head + row)
    whole, end = key_ranges(first_row, rows, keys, row_tile, key_tile, causal)
    last = last_keys(row, rows, keys, causal)
    total = tl.zeros((row_tile, padded), tl.float32)
    total = _over_keys(
        total, query, slope_out, k, v, k_row, v_row, row_bits, mean, 0, whole, keys, last, scale_bits,
        dim, padded, key_tile, False,
    )  # fmt: skip
    total = _over_keys(
        total, query, slope_out, k, v, k_row, v_row, row_bits, mean, whole, end, keys, last, scale_bits,
        dim, padded, key_tile, True,
    )  # fmt: skip
    store_rows(dq, dq_row, present, total * scale, row_tile, dim, padded)


@triton.jit
def _over_keys(
    total, query, slope_out, k, v, k_row, v_row, row_bits, mean, begin, end, keys, last, scale_bits,
    dim: tl.constexpr, padded: tl.constexpr, key_tile: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Add dS k of the keys [begin, end)."""
    for first in tl.range(begin, end, key_tile, num_stages=1 if masked else None):
        place = tl.cast(first, tl.int64)
        key = load_rows(k + place * k_row, k_row, keys - first, key_tile, dim, padded, not masked)
        value = load_rows(v + place * v_row, v_row, keys - first, key_tile, dim, padded, not masked)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        weights = tl.exp2(scores * scale_bits - row_bits[:, None])
        if masked:
            visible = (first + tl.arange(0, key_tile))[None, :] <= last[:, None]
            weights = tl.where(visible, weights, 0.0)
        slope = weights * (tl.dot(slope_out, tl.trans(value), input_precision="ieee") - mean[:, None])
        total = tl.dot(slope.to(key.dtype), key, total, input_precision="ieee")
    return total


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
