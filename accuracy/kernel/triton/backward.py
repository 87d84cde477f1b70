"""The backward in two forms: split (two kernels, seven products, deterministic) and fused (one kernel, five products).

Which is faster depends on how many programs there are to fill the device: see jax-triton's pull request 177.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from accuracy.kernel.triton.key_gradient import key_gradient
from accuracy.kernel.triton.query_gradient import query_gradient
from accuracy.kernel.triton.tile import LOG2_E, ROWS_MULTIPLE, load_rows, padded_dim, strides


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
