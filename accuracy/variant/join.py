"""Joining partials of attention over disjoint keys (formulas for the same weighted mean), and sums of gradients.

A formula takes out (B, S, H, D) and lse (B, S, H, 1), both in the dtypes in which the schedule keeps them, and a
block's partial, and returns the joined pair in the kept dtypes. In exact arithmetic all are

    lse' = ln(exp(lse) + exp(block_lse)),   out' = exp(lse - lse') out + exp(block_lse - lse') block_out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.kernel.triton import available


def sigmoid(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The published form of ring-flash-attention PR #34: no overflow; NaN where both partials are empty."""
    weight = torch.sigmoid(block_lse - lse)
    return out - weight * (out - block_out), lse - F.logsigmoid(lse - block_lse)


def logsumexp(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Two weights from a joint log-sum-exp; empty partials (lse = -inf) are allowed on both sides."""
    joint = torch.logaddexp(lse, block_lse)
    base = torch.where(torch.isneginf(joint), torch.zeros_like(joint), joint)
    return torch.exp(lse - base) * out + torch.exp(block_lse - base) * block_out, joint


def double(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """`logsumexp` computed in float64: only the kept dtypes round."""
    return logsumexp(out.double(), lse.double(), block_out.double(), block_lse.double())


def rescaled(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """`logsumexp` as TransformerEngine's compiled correction: out is rescaled, then the block multiplied and added in
    one operation; NaN where both partials are empty."""
    return _rescaled(torch.promote_types(out.dtype, lse.dtype), out, lse, block_out, block_lse)


def rescaled_twice(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    """`rescaled` as TransformerEngine writes it: what is rescaled is rounded to out's dtype before the block comes."""
    return _rescaled(out.dtype, out, lse, block_out, block_lse)


def _rescaled(
    between: torch.dtype, out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor
) -> tuple[Tensor, Tensor]:
    larger, smaller = torch.maximum(lse, block_lse), torch.minimum(lse, block_lse)
    joint = larger + torch.log1p(torch.exp(smaller - larger))
    scaled = (out * torch.exp(lse - joint)).to(between)
    return torch.addcmul(scaled, block_out, torch.exp(block_lse - joint)), joint


Formula = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
FORMULAS: dict[str, Formula] = {
    "sigmoid": sigmoid, "logsumexp": logsumexp, "double": double, "rescaled": rescaled,
    "rescaled_twice": rescaled_twice,
}  # fmt: skip


@dataclass
class Running:
    """The running partial of a rank's queries, as blocks arrive. Rows not yet seen are assigned, not merged.

    out: (B, S, H, D); lse: (B, S, H, 1); seen: for each row, whether a block has reached it. With the formula
    `compensated`, what each rounding of out and lse lost is kept beside them (Kahan 1965) and added in the next merge.
    """

    formula: str
    out: Tensor
    lse: Tensor
    out_lost: Tensor | None
    lse_lost: Tensor | None
    seen: bytearray

    @classmethod
    def empty(cls, like: Tensor, out_dtype: torch.dtype, lse_dtype: torch.dtype, formula: str) -> "Running":
        """No keys seen yet, for queries shaped `like` (B, S, H, D)."""
        batch, length, heads, _ = like.shape
        out = torch.empty_like(like, dtype=out_dtype)  # rows are assigned before they are read
        lse = like.new_full((batch, length, heads, 1), -torch.inf, dtype=lse_dtype)
        out_lost, lse_lost = (torch.zeros_like(x) if formula == "compensated" else None for x in (out, lse))
        return cls(formula, out, lse, out_lost, lse_lost, bytearray(length))

    def add(self, block: Block, block_out: Tensor, block_lse: Tensor) -> None:
        """Merge a block: out (B, S', H, D) and lse (B, H, S') of the rows `block.query`."""
        block_lse = block_lse.transpose(1, 2).unsqueeze(-1)
        for rows, seen in self._runs(block.query):
            part = slice(rows.start - block.query.start, rows.stop - block.query.start)
            bring = self._merge if seen else self._assign
            bring(rows, block_out[:, part], block_lse[:, part])
        self.seen[block.query] = b"\1" * (block.query.stop - block.query.start)

    def result(self, out_dtype: torch.dtype, lse_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """out (B, S, H, D) and lse (B, H, S), rounded once to the stored dtypes; 0 and -inf where no block was seen."""
        for rows, seen in self._runs(slice(0, len(self.seen))):
            if not seen:
                self.out[:, rows] = 0
        return self.out.to(out_dtype), self.lse.squeeze(-1).transpose(1, 2).to(lse_dtype).contiguous()

    @property
    def progress(self) -> bytes:
        """Which rows a block has reached."""
        return bytes(self.seen)

    def part(self, items: slice, progress: bytes) -> "Running":
        """The partial of some items of the batch, in the same memory; progress: that of the items."""
        out_lost, lse_lost = (None if lost is None else lost[items] for lost in (self.out_lost, self.lse_lost))
        return Running(self.formula, self.out[items], self.lse[items], out_lost, lse_lost, bytearray(progress))

    def _runs(self, rows: slice) -> Iterator[tuple[slice, bool]]:
        """The rows cut where `seen` changes. Nearly always one piece."""
        begin = rows.start
        if 0 not in self.seen[rows] or 1 not in self.seen[rows]:
            yield rows, bool(self.seen[begin])
            return
        for seen, alike in groupby(self.seen[rows]):
            end = begin + len(list(alike))
            yield slice(begin, end), bool(seen)
            begin = end

    def _assign(self, rows: slice, block_out: Tensor, block_lse: Tensor) -> None:
        self.out[:, rows], self.lse[:, rows] = block_out, block_lse
        if self.out_lost is not None and self.lse_lost is not None:
            self.out_lost[:, rows] = block_out - self.out[:, rows]
            self.lse_lost[:, rows] = block_lse - self.lse[:, rows]

    def _merge(self, rows: slice, block_out: Tensor, block_lse: Tensor) -> None:
        """Merge by the formula; on CUDA the published one is a single pass with the same roundings."""
        out, lse = self.out[:, rows], self.lse[:, rows]
        if self.out_lost is not None and self.lse_lost is not None:
            out_lost, lse_lost = self.out_lost[:, rows], self.lse_lost[:, rows]
            gap = (block_lse - lse) - lse_lost
            step = torch.sigmoid(gap) * ((block_out - out) - out_lost)
            self.out[:, rows], self.out_lost[:, rows] = _kahan(out, out_lost, step)
            self.lse[:, rows], self.lse_lost[:, rows] = _kahan(lse, lse_lost, -F.logsigmoid(-gap))
            return
        kernel = available.one_pass() if self.formula == "sigmoid" and out.is_cuda else None
        if kernel is not None and kernel.merges(out, lse, block_out, block_lse):
            kernel.merge(out, lse, block_out, block_lse)
        else:
            self.out[:, rows], self.lse[:, rows] = FORMULAS[self.formula](out, lse, block_out, block_lse)


def _kahan(total: Tensor, lost: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """total + lost + step, and what rounding the sum to total's dtype lost this time."""
    step = step + lost
    new = (total + step).to(total.dtype)
    taken = new - total  # Knuth's two-sum: right also where the step outweighs the total
    return new, (total - (new - taken)) + (step - taken)


@dataclass
class Accumulator:
    """A sum over blocks (B, S, heads, D), in `dtype`; empty until the first block comes, all zero where none does."""

    like: Tensor
    dtype: torch.dtype
    total: Tensor | None = None

    def add(self, rows: slice, block: Tensor) -> None:
        """Add a block (B, rows, heads, D) to its rows, rounding once to the sum's dtype. The block may become ours."""
        if self.total is None and rows == slice(0, self.like.shape[1]):
            self.total = block.to(self.dtype)
        else:
            self.value()[:, rows].add_(block)

    def take(self, received: Tensor) -> None:
        """Go on with a sum that another rank has begun."""
        self.total = received.to(self.dtype)

    def round_to(self, dtype: torch.dtype) -> None:
        """Round the sum, and what is added from now on, to a dtype."""
        self.dtype, self.total = dtype, self.value().to(dtype)

    def value(self) -> Tensor:
        """The sum so far."""
        if self.total is None:
            self.total = self.like.new_zeros(self.like.shape, dtype=self.dtype)
        return self.total
