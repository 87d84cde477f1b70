"""The running state of queries whose kernel goes on where it stopped: nothing is merged, out is rounded at the end."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from accuracy.core.masks import Block

MERGE_PLACES = ("partial", "out_accumulator", "lse", "merge")
"""Where a schedule rounds when it merges partials, and does not when its kernel carries the running state."""


@dataclass(frozen=True)
class SoftmaxState:
    """What an online softmax keeps of rows, float32: out = accumulator / row_sum, lse = ln(2) (row_max + log2 row_sum).

    accumulator: (B, S, H, D); row_max: (B, H, S), of scores in bits, log2(e) scale q k^T; row_sum: (B, H, S).
    """

    accumulator: Tensor
    row_max: Tensor
    row_sum: Tensor

    @classmethod
    def empty(cls, q: Tensor) -> "SoftmaxState":
        """The state of queries q (B, S, H, D) that have seen no keys."""
        row_sum = torch.zeros(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32, device=q.device)
        accumulator = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        return cls(accumulator, torch.full_like(row_sum, -torch.inf), row_sum)

    def part(self, items: slice = slice(None), rows: slice = slice(None)) -> "SoftmaxState":
        """The state of some items of the batch and some rows, in the same memory."""
        return SoftmaxState(self.accumulator[items, rows], self.row_max[items, :, rows], self.row_sum[items, :, rows])

    def result(self, out_dtype: torch.dtype, lse_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """out (B, S, H, D) and lse (B, H, S), each rounded once; 0 and -inf where no key was seen."""
        out = torch.empty_like(self.accumulator, dtype=out_dtype)
        divisor = torch.where(self.row_sum == 0, 1.0, self.row_sum).transpose(1, 2).unsqueeze(-1)
        torch.div(self.accumulator, divisor, out=out)
        lse = (self.row_max.double() + self.row_sum.double().log2()) * math.log(2)
        return out, lse.to(lse_dtype)


@dataclass
class RunningState:
    """The running state of a rank's queries q (B, S, H, D), as blocks arrive. carry: the kernel's own."""

    carry: Callable[..., None]
    q: Tensor
    state: SoftmaxState
    progress: ClassVar[bool] = True  # a state that has seen nothing is gone on from like any other

    def add(self, block: Block, k: Tensor, v: Tensor, scale: float) -> None:
        """Go on over a block's keys: k, v (B, S', Hk, D)."""
        rows = self.state.part(rows=block.query)
        self.carry(rows, self.q[:, block.query], k, v, scale=scale, causal=block.causal)

    def result(self, out_dtype: torch.dtype, lse_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """out (B, S, H, D) and lse (B, H, S), each rounded once; 0 and -inf where no block was seen."""
        return self.state.result(out_dtype, lse_dtype)

    def part(self, items: slice, progress: bool) -> "RunningState":
        """The state of some items of the batch, in the memory of the whole."""
        return RunningState(self.carry, self.q[items], self.state.part(items))
