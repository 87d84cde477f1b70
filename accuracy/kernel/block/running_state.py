"""The running state of queries whose kernel goes on where it stopped: nothing is merged, out is rounded at the end."""

import math
from collections.abc import Callable
from dataclasses import dataclass

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
    def unwritten(cls, q: Tensor) -> "SoftmaxState":
        """Memory for queries q (B, S, H, D), for a kernel that begins all of its rows."""
        shapes = q.shape, *2 * [(q.shape[0], q.shape[2], q.shape[1])]
        return cls(*(torch.empty(shape, dtype=torch.float32, device=q.device) for shape in shapes))

    def cleared(self) -> "SoftmaxState":
        """Return the same memory as the state of rows that have seen no keys."""
        self.accumulator.zero_()
        self.row_max.fill_(-torch.inf)
        self.row_sum.zero_()
        return self

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
    """The running state of a rank's queries q (B, S, H, D), as blocks arrive. carry: the kernel's own; memory: where
    the state is to be once it begins, or None."""

    carry: Callable[..., None]
    q: Tensor
    state: SoftmaxState | None = None
    memory: SoftmaxState | None = None

    def add(self, block: Block, k: Tensor, v: Tensor, scale: float) -> None:
        """Go on over a block's keys: k, v (B, S', Hk, D). A first block of all rows finds no state and reads none."""
        begins = self.state is None and block.query == slice(0, self.q.shape[1])
        if self.state is None:
            memory = SoftmaxState.unwritten(self.q) if self.memory is None else self.memory
            self.state = memory if begins else memory.cleared()
        rows = self.state.part(rows=block.query)
        self.carry(rows, self.q[:, block.query], k, v, scale=scale, causal=block.causal, begins=begins)

    def result(self, out_dtype: torch.dtype, lse_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """out (B, S, H, D) and lse (B, H, S), each rounded once; 0 and -inf where no block was seen."""
        state = SoftmaxState.unwritten(self.q).cleared() if self.state is None else self.state
        return state.result(out_dtype, lse_dtype)

    @property
    def progress(self) -> bool:
        """Whether the state has begun."""
        return self.state is not None

    def part(self, items: slice, progress: bool) -> "RunningState":
        """The state of some items of the batch, in the memory of the whole; progress: that of the items."""
        if self.memory is None:
            self.memory = SoftmaxState.unwritten(self.q)
        memory = self.memory.part(items)
        return RunningState(self.carry, self.q[items], memory if progress else None, memory)
