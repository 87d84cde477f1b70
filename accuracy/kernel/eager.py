"""Plain attention out of torch products, in any dtype, with every rounding place of a kernel as a knob.

As in flash kernels (Dao et al. 2022, algorithm 4), weights are rounded before they are normalised, and their sum is of
the unrounded ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.dtype import FORMATS
from accuracy.kernel.base import ALL_DTYPES, FEATURES, SCORES_AT_ONCE, Abilities, Gradients, How, Kernel, dtype_of
from accuracy.kernel.block.calls import part_of
from accuracy.kernel.block.heads import by_group, by_kv_head, by_token
from accuracy.kernel.block.sight import Sight, dropout_mask, scores
from accuracy.runtime import arithmetic, given_mask


@dataclass(frozen=True)
class Eager(Kernel):
    """compute_dtype: of scores, softmax and products; probability_dtype: to which P and dS are rounded before they
    are multiplied (flash kernels round them to the inputs' dtype); tf32: products of float32 in TF32 (CUDA)."""

    compute_dtype: str = "accumulate"
    probability_dtype: str = "input"
    tf32: bool = False

    def abilities(self, device: str) -> Abilities:
        """Everything, except TF32 without a GPU."""
        missing = self.without_tf32("eager", device)
        for key in ("compute_dtype", "probability_dtype"):
            word = getattr(self, key)
            if word not in ("input", "accumulate", *FORMATS):
                missing = f"does not know {key} {word!r}; allowed: input, accumulate, {', '.join(FORMATS)}"
        return Abilities(
            dtypes=ALL_DTYPES, partial_dtypes=ALL_DTYPES, features=(*FEATURES, "attn_mask", "dbias"), missing=missing
        )

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        compute, probability = dtype_of(self.compute_dtype, q), dtype_of(self.probability_dtype, q)
        keys, values = by_kv_head(k, compute), by_kv_head(v, compute)
        out = q.new_empty(*q.shape[:-1], v.shape[-1], dtype=how.dtype)
        lse = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=dtype_of("accumulate", q))
        with arithmetic.switched(tf32_products=self.tf32):
            for rows, columns, hidden in _chunks(q, k, how.sight(q, k)):
                query = by_group(q[:, rows], k.shape[2], compute)
                found, _ = scores(query, keys[..., columns, :], how.scale, hidden, how.softcap)
                found = _masked(found, how.mask, rows, columns)
                top = found.amax(dim=-1, keepdim=True)
                weights = found.sub_(top.masked_fill(top == -torch.inf, 0.0)).exp_()
                total = weights.sum(dim=-1, keepdim=True)
                normaliser = top + torch.log(total)
                mask = dropout_mask(how.dropout, rows, columns, weights)
                weights = weights if mask is None else weights.mul_(mask)
                product = weights.to(probability).to(compute) @ values[..., columns, :]
                out[:, rows] = by_token(how.raised(product.div_(total))).to(out.dtype)
                lse[:, :, rows] = normaliser.flatten(1, 2).squeeze(-1).to(lse.dtype)
        return out, lse

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        compute, probability = dtype_of(self.compute_dtype, q), dtype_of(self.probability_dtype, q)
        keys, values = by_kv_head(k, compute), by_kv_head(v, compute)
        dq = torch.empty_like(q, dtype=how.dtype)
        dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
        with arithmetic.switched(tf32_products=self.tf32):
            for rows, columns, hidden in _chunks(q, k, how.sight(q, k)):
                query, dout_rows, out_rows = (by_group(x[:, rows], k.shape[2], compute) for x in (q, dout, out))
                found, slope_of_cap = scores(query, keys[..., columns, :], how.scale, hidden, how.softcap)
                found = _masked(found, how.mask, rows, columns)
                normaliser = lse[:, :, rows].to(compute).unflatten(1, (k.shape[2], -1)).unsqueeze(-1)
                weights = found.sub_(normaliser).exp_()
                delta = (dout_rows * out_rows).sum(-1, keepdim=True)
                slope = dout_rows @ values[..., columns, :].mT
                mask = dropout_mask(how.dropout, rows, columns, weights)
                slope = slope if mask is None else how.raised(slope.mul_(mask))
                slope = slope.sub_(delta).mul_(weights)
                weights = weights if mask is None else weights.mul_(mask)
                if how.dbias is not None:
                    mine = part_of(how.dbias, rows, columns)
                    mine += slope.flatten(1, 2).sum_to_size(mine.shape)
                slope = slope if slope_of_cap is None else slope * slope_of_cap
                weights, slope = weights.to(probability).to(compute), slope.to(probability).to(compute)
                dq[:, rows] = by_token((slope @ keys[..., columns, :]).mul_(how.scale)).to(dq.dtype)
                dk[..., columns, :] += (slope.mT @ query).sum(2, keepdim=True)
                dv[..., columns, :] += (weights.mT @ dout_rows).sum(2, keepdim=True)
        return dq, by_token(dk * how.scale), by_token(how.raised(dv))


def _masked(found: Tensor, mask: Tensor | None, rows: slice, columns: slice) -> Tensor:
    """Scores (B, Hk, G, rows, columns) under a mask (1 or B, 1 or H, Sq, Sk)."""
    if mask is None:
        return found
    mine = mask[..., rows, columns].to(found.device)
    mine = mine.unsqueeze(2) if mine.shape[1] == 1 else mine.unflatten(1, found.shape[1:3])
    return found + given_mask.added(mine, found.dtype).to(found.dtype)


def _chunks(q: Tensor, k: Tensor, sight: Sight) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Rows of queries at a time, the keys that any of them sees, and where one of those is hidden from a row."""
    batch, length, heads, _ = q.shape
    rows = max(1, SCORES_AT_ONCE[q.device.type] // (batch * heads * k.shape[1]))
    for begin in range(0, length, rows):
        chunk = slice(begin, min(begin + rows, length))
        columns = sight.columns(chunk)
        yield chunk, columns, sight.hidden(chunk, columns, q.device)


KERNEL = Eager
