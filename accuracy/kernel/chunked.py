"""Memory-efficient attention out of torch products: keys in chunks, a running maximum and running sums.

Rabe and Staats 2021 (arXiv 2112.05682), section 3: a chunk of keys adds exp(s - m) v and exp(s - m) to sums that are
rescaled when the maximum m grows; one division at the end. At most query_chunk x key_chunk scores a head exist at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.core.case import Problem
from accuracy.core.dtype import Dtype, Whole
from accuracy.kernel.base import dtype_of
from accuracy.kernel.block.sight import Sight
from accuracy.kernel.eager import Tiles, TorchProducts, slices


@dataclass(frozen=True)
class Chunked(TorchProducts):
    """query_chunk, key_chunk: the paper's; accumulator_dtype: of the running sums (out, its denominator, dq, dk, dv);
    tf32: products of float32 in TF32 (CUDA)."""

    query_chunk: Whole = 1024
    key_chunk: Whole = 4096
    accumulator_dtype: Dtype = "accumulate"
    tf32: bool = False

    def scores_at_once(self, problem: Problem, device: str) -> int:
        """Count the scores of one chunk of queries and keys, the only ones in memory at once."""
        rows, keys = min(problem.queries, self.query_chunk), min(problem.seqlen, self.key_chunk)
        return problem.batch * problem.heads * rows * keys

    def dtypes(self, q: Tensor) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
        """See `TorchProducts.dtypes`."""
        compute = dtype_of("accumulate", q)
        return compute, compute, dtype_of(self.accumulator_dtype, q)

    def tiles(self, q: Tensor, k: Tensor, sight: Sight) -> Iterator[tuple[slice, Tiles]]:
        """See `TorchProducts.tiles`."""
        for rows in slices(q.shape[1], self.query_chunk):
            seen = sight.columns(rows)
            chunks = (each for each in slices(seen.stop, self.key_chunk) if each.stop > seen.start)
            yield rows, ((columns, sight.hidden(rows, columns, q.device)) for columns in chunks)


KERNEL = Chunked
