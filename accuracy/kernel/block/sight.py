"""Scores of a block out of torch products, and which keys its rows see, as ranges and as tensors.

Row i of R rows sees keys i + K - R - left to i + K - R + right of K keys; None: no limit to that side.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.kernel.block import heads


@dataclass(frozen=True)
class Sight:
    """rows, keys: of the whole block."""

    rows: int
    keys: int
    left: int | None
    right: int | None

    def columns(self, rows: slice) -> slice:
        """The keys that any of the rows sees."""
        offset = self.keys - self.rows
        begin = 0 if self.left is None else max(0, rows.start + offset - self.left)
        end = self.keys if self.right is None else min(self.keys, rows.stop + offset + self.right)
        return slice(begin, end)

    def seen_by(self, columns: slice) -> slice:
        """The rows that see any of the keys."""
        offset = self.keys - self.rows
        begin = 0 if self.right is None else max(0, columns.start - offset - self.right)
        end = self.rows if self.left is None else min(self.rows, columns.stop - offset + self.left)
        return slice(begin, end)

    def hidden(self, rows: slice, columns: slice, device: torch.device) -> Tensor | None:
        """(rows, columns): true where a row does not see a key; None: all see all."""
        offset = self.keys - self.rows
        beyond = self.right is not None and columns.stop - 1 > rows.start + offset + self.right
        before = self.left is not None and columns.start < rows.stop - 1 + offset - self.left
        if not (beyond or before):
            return None
        row = torch.arange(rows.start, rows.stop, device=device)[:, None] + offset
        key = torch.arange(columns.start, columns.stop, device=device)
        hidden = torch.zeros(len(row), len(key), dtype=torch.bool, device=device)
        if self.right is not None:
            hidden |= key > row + self.right
        if self.left is not None:
            hidden |= key < row - self.left
        return hidden

    def bias(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """(rows, keys): 0 where a row sees a key, -inf elsewhere; None: all see all."""
        hidden = self.hidden(slice(0, self.rows), slice(0, self.keys), device)
        return None if hidden is None else torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)


def scores(
    query: Tensor, keys: Tensor, scale: float, hidden: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Scaled (and capped) scores (..., rows, columns), hidden ones at -inf, and d score / d (scale q k^T), None for 1.

    query (..., rows, D), keys (..., columns, D) in the dtype of the arithmetic; hidden (rows, columns).
    """
    return of_products(query @ keys.mT, scale, hidden, softcap)


def of_products(
    products: Tensor, scale: float, hidden: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Return the same as `scores`, from q k^T (..., rows, columns), which is overwritten."""
    products, slope = products.mul_(scale), None
    if softcap is not None:
        ratio = torch.tanh(products / softcap)
        products, slope = ratio * softcap, 1 - ratio.square()
    return (products if hidden is None else products.masked_fill_(hidden, -torch.inf)), slope


def lse_beside(q: Tensor, k: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    """lse (B, H, Sq) of q (B, Sq, H, D), k (B, Sk, Hk, D) for kernels that give none, in the accumulation dtype: q and
    k are each scaled by the root of the scale. bias: (Sq, Sk), see `Sight.bias`."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    root = math.sqrt(scale)
    products = (heads.by_group(q, k.shape[2], dtype) * root) @ (heads.by_kv_head(k, dtype) * root).mT
    return torch.logsumexp(products if bias is None else products + bias, dim=-1).flatten(1, 2)
