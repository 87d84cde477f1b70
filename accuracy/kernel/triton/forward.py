"""Triton: attention by online softmax, from nothing or from a running state; the state comes back unrounded.

FlashAttention-2 (Dao 2023, arXiv 2307.08691, algorithm 1) in float32 with s = log2(e) scale q k^T, so that powers of 2
serve for the exponential: out = a / l, lse = ln(2) (m + log2 l). As in flash-attention, weights are rounded to the
inputs' dtype before they meet v, and l sums them unrounded. Triton rounds log2(e) scale to float32, which moves s by
no more than its own rounding does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from accuracy.kernel.block.running_state import SoftmaxState
from accuracy.kernel.triton.tile import LN_2, LOG2_E, choose, key_ranges, last_keys, load_rows, store_rows, strides


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See `accuracy.kernel.base.Kernel.forward`. Rows that see no key: out 0, lse -inf. Raises ValueError where scale
    is not above 0 or head dims are not contiguous."""
    out = torch.empty(q.shape, dtype=out_dtype, device=q.device)
    lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
    _launch(q, k, v, out, lse, None, scale, causal)
    return out, lse


def carry(state: SoftmaxState, q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> None:
    """Bring the keys k, v (B, Sk, Hk, D) into the state of the queries q (B, Sq, H, D), in place and unrounded."""
    _launch(q, k, v, state.accumulator, state.row_max, state.row_sum, scale, causal)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, statistic: Tensor, row_sum: Tensor | None,
    scale: float, causal: bool,
) -> None:  # fmt: skip
    if scale <= 0:  # the largest score must be that of the largest product
        raise ValueError(f"scale={scale}; allowed: above 0")
    batch, rows, heads, dim = q.shape
    tiles, padded = choose("FORWARD", q)
    _forward[(triton.cdiv(rows, tiles.rows) * batch * heads,)](
        q, k, v, out, statistic, row_sum, scale * LOG2_E.value, rows, k.shape[1], heads, heads // k.shape[2],
        *strides(q, k, v, out), *statistic.stride()[:2],
        dim, padded, tiles.rows, tiles.keys, causal, row_sum is not None,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "keys", "heads", "group", "statistic_batch", "statistic_head"])
def _forward(
    q, k, v, out, statistic, row_sum, scale, rows, keys, heads, group,
    q_batch, q_row, q_head, k_batch, k_row, k_head, v_batch, v_row, v_head, out_batch, out_row, out_head,
    statistic_batch, statistic_head,
    dim: tl.constexpr, padded: tl.constexpr, row_tile: tl.constexpr, key_tile: tl.constexpr, causal: tl.constexpr,
    carried: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one head. out, statistic: out and lse, or where it is carried on the accumulator and the row
    maxima, with row_sum beside them. Long rows first: the short ones fill the device's last gaps."""
    tiles = tl.cdiv(rows, row_tile)
    place = tl.program_id(0) % tiles
    head = (tl.program_id(0) // tiles % heads).to(tl.int64)
    batch = (tl.program_id(0) // tiles // heads).to(tl.int64)
    first_row = (tiles - 1 - place) * row_tile
    begin = first_row.to(tl.int64)
    row = first_row + tl.arange(0, row_tile)
    present = rows - first_row
    q += batch * q_batch + head * q_head + begin * q_row
    k += batch * k_batch + head // group * k_head
    v += batch * v_batch + head // group * v_head
    out += batch * out_batch + head * out_head + begin * out_row
    statistic += batch * statistic_batch + head * statistic_head + row
    query = load_rows(q, q_row, present, row_tile, dim, padded, False)
    if carried:
        accumulator = load_rows(out, out_row, present, row_tile, dim, padded, False)
        row_max = tl.load(statistic, mask=row < rows, other=float("-inf"))
        total = tl.load(row_sum + batch * statistic_batch + head * statistic_head + row, mask=row < rows, other=0.0)
    else:
        accumulator = tl.zeros((row_tile, padded), tl.float32)
        row_max = tl.full((row_tile,), float("-inf"), tl.float32)
        total = tl.zeros((row_tile,), tl.float32)
    whole, end = key_ranges(first_row, rows, keys, row_tile, key_tile, causal)
    last = last_keys(row, rows, keys, causal)
    accumulator, row_max, total = _over_keys(
        accumulator, row_max, total, query, k, v, k_row, v_row, 0, whole, keys, last, scale,
        dim, padded, key_tile, False,
    )  # fmt: skip
    accumulator, row_max, total = _over_keys(
        accumulator, row_max, total, query, k, v, k_row, v_row, whole, end, keys, last, scale,
        dim, padded, key_tile, True,
    )  # fmt: skip
    if carried:
        tl.store(row_sum + batch * statistic_batch + head * statistic_head + row, total, mask=row < rows)
    else:
        divisor = tl.where(total == 0.0, 1.0, total)  # a row without a key has row_max -inf
        accumulator = accumulator / divisor[:, None]
        row_max = (row_max + tl.log2(divisor)) * LN_2
    store_rows(out, out_row, present, accumulator, row_tile, dim, padded)
    tl.store(statistic, row_max, mask=row < rows)


@triton.jit
def _over_keys(
    accumulator, row_max, total, query, k, v, k_row, v_row, begin, end, keys, last, scale,
    dim: tl.constexpr, padded: tl.constexpr, key_tile: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Go on over keys [begin, end). masked: some rows do not see them all, or there are fewer keys than a tile has."""
    for first in tl.range(begin, end, key_tile, num_stages=1 if masked else None):  # see `key_ranges`
        place = tl.cast(first, tl.int64)
        key = load_rows(k + place * k_row, k_row, keys - first, key_tile, dim, padded, not masked)
        value = load_rows(v + place * v_row, v_row, keys - first, key_tile, dim, padded, not masked)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if masked:
            visible = (first + tl.arange(0, key_tile))[None, :] <= last[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
        base = tl.where(new_max == float("-inf"), 0.0, new_max) if masked else new_max  # a row without a key yet
        weights = tl.exp2(scores * scale - base[:, None])
        fade = tl.exp2(row_max - base)
        total = total * fade + tl.sum(weights, 1)
        accumulator = tl.dot(weights.to(value.dtype), value, accumulator * fade[:, None], input_precision="ieee")
        row_max = new_max
    return accumulator, row_max, total
