"""Triton: what both backward kernels need of every row: its lse in bits, and delta = sum_d dout out in float32.

Both come padded to whole tiles of rows: a padding row has lse +inf, so that its weights 2^(s - lse) are zero without a
mask, and every row of a tile may be loaded.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from accuracy.kernel.triton.tile import LOG2_E, load_rows, strides
from accuracy.kernel.triton.tiles import ROWS_MULTIPLE, padded_dim

TILE_ELEMENTS = 4096


def row_statistics(dout: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """log2(e) lse and delta, float32 (B, H, S'), S' = S up to a multiple of `ROWS_MULTIPLE`.

    dout, out: (B, S, H, D), whose dtypes may differ; lse: (B, H, S), natural.
    """
    batch, rows, heads, dim = dout.shape
    stored = triton.cdiv(rows, ROWS_MULTIPLE) * ROWS_MULTIPLE
    lse_bits, delta = (torch.empty(batch, heads, stored, dtype=torch.float32, device=dout.device) for _ in range(2))
    padded = padded_dim(dim)
    tile = TILE_ELEMENTS // padded
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
