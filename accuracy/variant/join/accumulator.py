"""A sum over blocks, kept in one dtype: where gradients of several blocks meet."""

from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.kernel.triton import available


@dataclass
class Accumulator:
    """Of shape (B, S, heads, D), in `dtype`; empty until the first block comes, all zero where none does.

    memory: where the sum is to be; None: in a first block of all rows, if it has the dtype.
    """

    like: Tensor
    dtype: torch.dtype
    total: Tensor | None = None
    memory: Tensor | None = None

    def add(self, rows: slice, block: Tensor) -> None:
        """Add a block (B, rows, heads, D) to its rows, rounding once to the sum's dtype. The block may become ours."""
        if self.total is None:
            if rows == slice(0, self.like.shape[1]):
                self.total = block.to(self.dtype) if self.memory is None else self.memory.copy_(block)
                return
            self.total = self._zeros()
        self.total[:, rows] += block

    def add_each(self, rows: slice, blocks: Tensor) -> None:
        """Add blocks (B, N, rows, heads, D) one after another: the bits of N calls of `add`. They may become ours."""
        self.add(rows, blocks[:, 0])
        total, others = self.value()[:, rows], blocks[:, 1:]
        kernel = available.helper("block_sum") if total.is_cuda and others.shape[1] else None
        if kernel is not None and kernel.serves(total, others):
            kernel.add(total, others)
            return
        for block in others.unbind(1):
            total += block

    def take(self, received: Tensor) -> None:
        """Go on with a sum that another rank has begun."""
        self.total = received.to(self.dtype)

    def value(self) -> Tensor:
        """The sum so far."""
        if self.total is None:
            self.total = self._zeros()
        return self.total

    @property
    def progress(self) -> bool:
        """Whether the sum has begun."""
        return self.total is not None

    def part(self, items: slice, progress: bool) -> "Accumulator":
        """The sum of some items of the batch, in the memory of the whole; progress: that of the items."""
        if self.memory is None:
            self.memory = torch.empty_like(self.like, dtype=self.dtype)
        memory = self.memory[items]
        return Accumulator(self.like[items], self.dtype, memory if progress else None, memory)

    def _zeros(self) -> Tensor:
        return self.like.new_zeros(self.like.shape, dtype=self.dtype) if self.memory is None else self.memory.zero_()
