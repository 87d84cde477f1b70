"""Attention out of torch products, in any dtype, with every rounding place of a kernel as a knob.

`eager` sums all keys of a row at once, `chunked` chunk by chunk.

As in flash kernels (Dao et al. 2022, algorithm 4), weights are rounded before they are normalised, and their sum is of
the unrounded ones.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.dtype import Dtype
from accuracy.kernel.base import ALL_DTYPES, FEATURES, SCORES_AT_ONCE, Abilities, Gradients, How, Kernel, dtype_of
from accuracy.kernel.block.calls import part_of
from accuracy.kernel.block.heads import by_group, by_kv_head, by_token
from accuracy.kernel.block.sight import Sight, scores
from accuracy.runtime import arithmetic, given_mask

Tiles = Iterable[tuple[slice, Tensor | None]]
"""Some keys, and where one of them is hidden from a row (None: nowhere)."""


class TorchProducts(Kernel):
    """Rows of queries in turn, each over tiles of keys: a running maximum, and sums that are rescaled where it grows.
    A subclass has `dtypes` and `tiles`."""

    tf32: bool

    def abilities(self, device: str) -> Abilities:
        """Everything, except TF32 without a GPU."""
        features, missing = (*FEATURES, "attn_mask", "dbias"), self.without_tf32(type(self).__name__.lower(), device)
        return Abilities(dtypes=ALL_DTYPES, partial_dtypes=ALL_DTYPES, features=features, missing=missing)

    def dtypes(self, q: Tensor) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
        """Return the dtypes of products, of P and dS before they are multiplied, and of running sums."""
        raise NotImplementedError

    def tiles(self, q: Tensor, k: Tensor, sight: Sight) -> Iterator[tuple[slice, Tiles]]:
        """Yield rows of queries, and the tiles of the keys that any of them sees."""
        raise NotImplementedError

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        compute, probability, stored = self.dtypes(q)
        keys, values = by_kv_head(k, compute), by_kv_head(v, compute)
        out = q.new_empty(*q.shape[:-1], v.shape[-1], dtype=how.dtype)
        lse = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=dtype_of("accumulate", q))
        with arithmetic.switched(tf32_products=self.tf32):
            for rows, tiles in self.tiles(q, k, how.sight(q, k)):
                query = by_group(q[:, rows], k.shape[2], compute)
                largest = query.new_full((*query.shape[:-1], 1), -torch.inf)
                total = torch.zeros_like(largest, dtype=stored)
                sums = query.new_zeros(*query.shape[:-1], v.shape[-1], dtype=stored)
                for columns, hidden in tiles:
                    found, _ = scores(query, keys[..., columns, :], how.scale, hidden, how.softcap)
                    found = _masked(found, how.mask, rows, columns)
                    grown = torch.maximum(largest, found.amax(dim=-1, keepdim=True))
                    base = grown.masked_fill(grown == -torch.inf, 0.0)  # a row may see nothing of its first tile
                    weights, rescale = found.sub_(base).exp_(), torch.exp(largest - base)
                    total = (total * rescale + weights.sum(dim=-1, keepdim=True)).to(stored)
                    product = weights.to(probability).to(compute) @ values[..., columns, :]
                    sums, largest = (sums * rescale + product).to(stored), grown
                out[:, rows] = by_token(sums / total).to(out.dtype)
                lse[:, :, rows] = (largest + total.to(compute).log()).flatten(1, 2).squeeze(-1).to(lse.dtype)
        return out, lse

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        compute, probability, stored = self.dtypes(q)
        keys, values = by_kv_head(k, compute), by_kv_head(v, compute)
        dq = torch.empty_like(q, dtype=how.dtype)
        dk, dv = torch.zeros_like(keys, dtype=stored), torch.zeros_like(values, dtype=stored)
        with arithmetic.switched(tf32_products=self.tf32):
            for rows, tiles in self.tiles(q, k, how.sight(q, k)):
                query, dout_rows, out_rows = (by_group(x[:, rows], k.shape[2], compute) for x in (q, dout, out))
                normaliser = lse[:, :, rows].to(compute).unflatten(1, (k.shape[2], -1)).unsqueeze(-1)
                delta = (dout_rows * out_rows).sum(-1, keepdim=True)
                dquery = torch.zeros_like(query, dtype=stored)
                for columns, hidden in tiles:
                    found, slope_of_cap = scores(query, keys[..., columns, :], how.scale, hidden, how.softcap)
                    weights = _masked(found, how.mask, rows, columns).sub_(normaliser).exp_()
                    slope = (dout_rows @ values[..., columns, :].mT).sub_(delta).mul_(weights)
                    if how.dbias is not None:
                        mine = part_of(how.dbias, rows, columns)
                        mine += slope.flatten(1, 2).sum_to_size(mine.shape)
                    slope = slope if slope_of_cap is None else slope * slope_of_cap
                    weights, slope = weights.to(probability).to(compute), slope.to(probability).to(compute)
                    dquery = (dquery + slope @ keys[..., columns, :]).to(stored)
                    dk[..., columns, :] += (slope.mT @ query).sum(2, keepdim=True)
                    dv[..., columns, :] += (weights.mT @ dout_rows).sum(2, keepdim=True)
                dq[:, rows] = by_token(dquery * how.scale).to(dq.dtype)
        return dq, by_token(dk * how.scale), by_token(dv)


def _masked(found: Tensor, mask: Tensor | None, rows: slice, columns: slice) -> Tensor:
    """Scores (B, Hk, G, rows, columns) under a mask (1 or B, 1 or H, Sq, Sk)."""
    if mask is None:
        return found
    mine = mask[..., rows, columns].to(found.device)
    mine = mine.unsqueeze(2) if mine.shape[1] == 1 else mine.unflatten(1, found.shape[1:3])
    return found + given_mask.added(mine, found.dtype).to(found.dtype)


@dataclass(frozen=True)
class Eager(TorchProducts):
    """compute_dtype: of scores, softmax and products; probability_dtype: to which P and dS are rounded before they
    are multiplied (flash kernels round them to the inputs' dtype); tf32: products of float32 in TF32 (CUDA)."""

    compute_dtype: Dtype = "accumulate"
    probability_dtype: Dtype = "input"
    tf32: bool = False

    def dtypes(self, q: Tensor) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
        """See `TorchProducts.dtypes`."""
        compute = dtype_of(self.compute_dtype, q)
        return compute, dtype_of(self.probability_dtype, q), compute

    def tiles(self, q: Tensor, k: Tensor, sight: Sight) -> Iterator[tuple[slice, Tiles]]:
        """Yield as many rows as fit into memory with all their keys, which are one tile."""
        batch, length, heads, _ = q.shape
        for rows in slices(length, max(1, SCORES_AT_ONCE[q.device.type] // (batch * heads * k.shape[1]))):
            columns = sight.columns(rows)
            yield rows, [(columns, sight.hidden(rows, columns, q.device))]


def slices(length: int, size: int) -> Iterator[slice]:
    """Cut a length into slices of at most one size."""
    return (slice(begin, min(begin + size, length)) for begin in range(0, length, size))


KERNEL = Eager
