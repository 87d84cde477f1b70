"""Memory-efficient attention out of torch products: keys in chunks, a running maximum and running sums.

Rabe and Staats 2021 (arXiv 2112.05682), section 3: a chunk of keys adds exp(s - m) v and exp(s - m) to sums that are
rescaled when the maximum m grows; one division at the end. At most query_chunk x key_chunk scores a head exist at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.core.dtype import FORMATS
from accuracy.kernel.base import ALL_DTYPES, FEATURES, Abilities, Gradients, How, Kernel, dtype_of
from accuracy.kernel.block import heads
from accuracy.kernel.block.sight import Sight, dropout_mask, scores
from accuracy.runtime import arithmetic


@dataclass(frozen=True)
class Chunked(Kernel):
    """query_chunk, key_chunk: the paper's; accumulator_dtype: of the running sums (out, its denominator, dq, dk, dv);
    tf32: products of float32 in TF32 (CUDA)."""

    query_chunk: int = 1024
    key_chunk: int = 4096
    accumulator_dtype: str = "accumulate"
    tf32: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if min(self.query_chunk, self.key_chunk) < 1:
            raise ValueError(f"query_chunk={self.query_chunk}, key_chunk={self.key_chunk}; allowed: from 1")
        words = ("input", "accumulate", *FORMATS)
        if self.accumulator_dtype not in words:
            raise ValueError(f"accumulator_dtype={self.accumulator_dtype!r}; allowed: {', '.join(words)}")

    def abilities(self, device: str) -> Abilities:
        """Everything, except TF32 without a GPU."""
        missing = self.without_tf32("chunked", device)
        return Abilities(dtypes=ALL_DTYPES, partial_dtypes=ALL_DTYPES, features=FEATURES, missing=missing)

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """Count the scores of one chunk of queries and keys, the only ones in memory at once."""
        rows, keys = min(problem.queries, self.query_chunk), min(problem.seqlen, self.key_chunk)
        return problem.batch * problem.heads * rows * keys

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, how: How) -> tuple[Tensor, Tensor]:
        compute, stored = dtype_of("accumulate", q), dtype_of(self.accumulator_dtype, q)
        keys, values = heads.by_kv_head(k, compute), heads.by_kv_head(v, compute)
        out = q.new_empty(*q.shape[:-1], v.shape[-1], dtype=how.dtype)
        lse = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=compute)
        with arithmetic.switched(tf32_products=self.tf32):
            for rows in _slices(q.shape[1], self.query_chunk):
                query = heads.by_group(q[:, rows], k.shape[2], compute)
                largest = query.new_full((*query.shape[:-1], 1), -torch.inf)
                total = torch.zeros_like(largest, dtype=stored)
                sums = query.new_zeros(*query.shape[:-1], v.shape[-1], dtype=stored)
                for columns, hidden in self._visible(how.sight(q, k), rows, q.device):
                    found, _ = scores(query, keys[..., columns, :], how.scale, hidden, how.softcap)
                    grown = torch.maximum(largest, found.amax(-1, keepdim=True))
                    base = grown.masked_fill(grown == -torch.inf, 0.0)  # a row may see nothing of its first chunk
                    weights, rescale = torch.exp(found - base), torch.exp(largest - base)
                    total = (total * rescale + weights.sum(-1, keepdim=True)).to(stored)
                    mask = dropout_mask(how.dropout, rows, columns, weights)
                    weights = weights if mask is None else weights * mask
                    sums = (sums * rescale + weights @ values[..., columns, :]).to(stored)
                    largest = grown
                out[:, rows] = heads.by_token(how.raised(sums / total)).to(out.dtype)
                lse[:, :, rows] = (largest + total.to(compute).log()).flatten(1, 2).squeeze(-1)
        return out, lse

    def _backward(self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, how: How) -> Gradients:
        compute, stored = dtype_of("accumulate", q), dtype_of(self.accumulator_dtype, q)
        keys, values = heads.by_kv_head(k, compute), heads.by_kv_head(v, compute)
        dq = torch.empty_like(q, dtype=how.dtype)
        dk, dv = torch.zeros_like(keys, dtype=stored), torch.zeros_like(values, dtype=stored)
        with arithmetic.switched(tf32_products=self.tf32):
            for rows in _slices(q.shape[1], self.query_chunk):
                query, dout_rows, out_rows = (heads.by_group(x[:, rows], k.shape[2], compute) for x in (q, dout, out))
                normaliser = lse[:, :, rows].to(compute).unflatten(1, (k.shape[2], -1)).unsqueeze(-1)
                delta = (dout_rows * out_rows).sum(-1, keepdim=True)
                dquery = torch.zeros_like(query, dtype=stored)
                for columns, hidden in self._visible(how.sight(q, k), rows, q.device):
                    found, slope_of_cap = scores(query, keys[..., columns, :], how.scale, hidden, how.softcap)
                    weights = torch.exp(found - normaliser)
                    slope = dout_rows @ values[..., columns, :].mT
                    mask = dropout_mask(how.dropout, rows, columns, weights)
                    slope = weights * ((slope if mask is None else how.raised(slope * mask)) - delta)
                    weights = weights if mask is None else weights * mask
                    slope = slope if slope_of_cap is None else slope * slope_of_cap
                    dquery = (dquery + slope @ keys[..., columns, :]).to(stored)
                    dk[..., columns, :] += (slope.mT @ query).sum(2, keepdim=True)
                    dv[..., columns, :] += (weights.mT @ dout_rows).sum(2, keepdim=True)
                dq[:, rows] = heads.by_token(dquery * how.scale).to(dq.dtype)
        return dq, heads.by_token(dk * how.scale), heads.by_token(how.raised(dv))

    def _visible(self, sight: Sight, rows: slice, device: torch.device) -> Iterator[tuple[slice, Tensor | None]]:
        """Chunks of keys that some row of `rows` sees, and where they are hidden from one (None: nowhere)."""
        seen = sight.columns(rows)
        for columns in _slices(seen.stop, self.key_chunk):
            if columns.stop > seen.start:
                yield columns, sight.hidden(rows, columns, device)


def _slices(length: int, size: int) -> Iterator[slice]:
    return (slice(begin, min(begin + size, length)) for begin in range(0, length, size))


KERNEL = Chunked
