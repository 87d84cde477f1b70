"""A sum over blocks, kept in one dtype: where gradients of several blocks meet."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Accumulator:
    """Of shape (B, S, heads, D), in `dtype`; empty until the first block comes, all zero where none does."""

    like: Tensor
    dtype: torch.dtype
    total: Tensor | None = None

    def add(self, rows: slice, block: Tensor) -> None:
        """Add a block (B, rows, heads, D) to its rows, rounding once to the sum's dtype. The block may become ours."""
        if self.total is None:
            if rows == slice(0, self.like.shape[1]):
                self.total = block.to(self.dtype)
                return
            self.total = self.like.new_zeros(self.like.shape, dtype=self.dtype)
        self.total[:, rows] += block

    def take(self, received: Tensor) -> None:
        """Go on with a sum that another rank has begun."""
        self.total = received.to(self.dtype)

    def value(self) -> Tensor:
        """The sum so far."""
        if self.total is None:
            self.total = self.like.new_zeros(self.like.shape, dtype=self.dtype)
        return self.total
