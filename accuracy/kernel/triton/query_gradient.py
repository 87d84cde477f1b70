"""Triton: dq = scale sum_j dS_j k_j, one program for each tile of rows; every sum in one order, so deterministic.

dS = p (dout v^T - delta) in float32 is rounded to the inputs' dtype before it meets k, as flash-attention does.
"""

import triton
import triton.language as tl
from torch import Tensor

from accuracy.kernel.triton.tile import LOG2_E, choose, key_ranges, last_keys, load_rows, store_rows, strides


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
