"""A ring's kernel calls of a step, folded: ranks in a row and columns of their blocks, in the batch of one call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from accuracy.kernel.block.running_state import Carried
from accuracy.simulate.batched.column import Column
from accuracy.simulate.batched.plan import Run
from accuracy.variant.base import Rank
from accuracy.variant.join.merge import Running
from accuracy.world.base import Tensors


@dataclass(frozen=True)
class Call:
    """A column of blocks of ranks in a row, on the keys of the ranks `shift` further on."""

    column: Column
    ranks: range
    shift: int

    def sources(self, ranks: range) -> range:
        """Whose keys some of the ranks read."""
        return range(ranks.start + self.shift, ranks.stop + self.shift)


def calls(rank: Rank, way: str, runs: Sequence[Run], q: Tensor, k: Tensor) -> Iterator[Call]:
    """A step's kernel calls, each rank's columns in their order. q, k: of one rank, for their shapes.

    A column's keys are repeated for each of its blocks: to as many as a rank has, no more.
    """
    for run in runs:
        for column in run.columns:
            queries, keys = q[:, column.block.query], k[:, column.block.key]
            at_once = _at_once(rank, way, len(run.ranks) * column.count, queries, keys)
            high = 1 if _carries(rank, way) else min(at_once, column.count, k.shape[1] // keys.shape[1])
            wide = max(1, at_once // high)
            for begin in range(0, len(run.ranks), wide):
                for piece in column.pieces(high):
                    yield Call(piece, run.ranks[begin : begin + wide], run.shift)


def join(rank: Rank, partial: Running | Carried, column: Column, q: Tensor, k: Tensor, v: Tensor) -> None:
    """`Rank.join` of a column."""
    if isinstance(partial, Carried) or column.count == 1:
        rank.join(partial, column.block, q, k, v)
        return
    out, lse = rank.attend(column.one, column.rows(q), column.keys(k), column.keys(v))
    partial.add(column.whole, column.joined_rows(out), column.joined_lse(lse))


def differentiate(
    rank: Rank, column: Column, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> Tensors:
    """`Rank.differentiate` of a column: dq of all its rows; dk, dv (N, count, S'', Hk, D) of its blocks, in order."""
    if column.count == 1:
        dq, dk, dv = rank.differentiate(column.block, dout, q, k, v, out, lse)
        return dq, dk.unsqueeze(1), dv.unsqueeze(1)
    tensors = column.rows(dout), column.rows(q), column.keys(k), column.keys(v), column.rows(out), column.lse(lse)
    dq, dk, dv = rank.differentiate(column.one, *tensors)
    return column.joined_rows(dq), dk.unflatten(0, (-1, column.count)), dv.unflatten(0, (-1, column.count))


def _at_once(rank: Rank, way: str, blocks: int, q: Tensor, k: Tensor) -> int:
    """How many blocks may be one call on tensors like one block's q and k."""
    foldable = getattr(rank.kernel, "foldable", None)
    merged = way == "forward"  # a backward's partials are only added
    return 1 if foldable is None or (merged and not places_are_alike(q)) else foldable(way, blocks, q, k)


def places_are_alike(x: Tensor) -> bool:
    """Whether torch's functions of an element give the same bits wherever it lies: on the CPU, those at the end of a
    tensor, which fill no vector register, are computed by another exponential (sigmoid, logaddexp)."""
    return x.is_cuda


def _carries(rank: Rank, way: str) -> bool:
    """Whether the kernel goes on in the memory of the state, where rows of a column are no items of a batch."""
    return way == "forward" and hasattr(rank.kernel, "carry")
