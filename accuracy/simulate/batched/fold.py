"""A ring's kernel calls of a step, folded: several calls, of consecutive ranks and blocks, in the batch of one call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from accuracy.kernel.block.running_state import RunningState
from accuracy.simulate.batched.key_group import KeyGroup
from accuracy.simulate.batched.runs import Run
from accuracy.variant.base import Rank
from accuracy.variant.join.merge import Running
from accuracy.world.base import Tensors


@dataclass(frozen=True)
class Call:
    """A group of blocks of consecutive ranks, on the keys of the ranks `shift` further on."""

    group: KeyGroup
    ranks: range
    shift: int

    def sources(self, ranks: range) -> range:
        """Whose keys some of the ranks read."""
        return range(ranks.start + self.shift, ranks.stop + self.shift)


def calls(rank: Rank, way: str, runs: Sequence[Run], q: Tensor, k: Tensor) -> Iterator[Call]:
    """A step's kernel calls, each rank's groups in their order. q, k: of one rank, for their shapes.

    A group's keys are repeated for each of its blocks: to as many as a rank has, no more.
    """
    for run in runs:
        for group in run.groups:
            queries, keys = q[:, group.block.query], k[:, group.block.key]
            at_once = _at_once(rank, way, len(run.ranks) * group.count, queries, keys)
            high = 1 if _carries(rank, way) else min(at_once, group.count, k.shape[1] // keys.shape[1])
            wide = max(1, at_once // high)
            for begin in range(0, len(run.ranks), wide):
                for piece in group.pieces(high):
                    yield Call(piece, run.ranks[begin : begin + wide], run.shift)


def join(rank: Rank, partial: Running | RunningState, group: KeyGroup, q: Tensor, k: Tensor, v: Tensor) -> None:
    """`Rank.join` of a group."""
    if isinstance(partial, RunningState) or group.count == 1:
        rank.join(partial, group.block, q, k, v)
        return
    out, lse = rank.attend(group.one, group.rows(q), group.keys(k), group.keys(v))
    partial.add(group.whole, group.joined_rows(out), group.joined_lse(lse))


def differentiate(
    rank: Rank, group: KeyGroup, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> Tensors:
    """`Rank.differentiate` of a group: dq of all its rows; dk, dv (N, count, S'', Hk, D) of its blocks, in order."""
    if group.count == 1:
        dq, dk, dv = rank.differentiate(group.block, dout, q, k, v, out, lse)
        return dq, dk.unsqueeze(1), dv.unsqueeze(1)
    tensors = group.rows(dout), group.rows(q), group.keys(k), group.keys(v), group.rows(out), group.lse(lse)
    dq, dk, dv = rank.differentiate(group.one, *tensors)
    return group.joined_rows(dq), dk.unflatten(0, (-1, group.count)), dv.unflatten(0, (-1, group.count))


def _at_once(rank: Rank, way: str, blocks: int, q: Tensor, k: Tensor) -> int:
    """How many blocks may be one call on tensors like one block's q and k."""
    foldable = getattr(rank.kernel, "foldable", None)
    merged = way == "forward"  # a backward's partials are only added
    return 1 if foldable is None or (merged and not position_is_irrelevant(q)) else foldable(way, blocks, q, k)


def position_is_irrelevant(x: Tensor) -> bool:
    """Whether torch's functions of an element give the same bits wherever it lies: on the CPU, those at the end of a
    tensor, which fill no vector register, are computed by another exponential (sigmoid, logaddexp)."""
    return x.is_cuda


def _carries(rank: Rank, way: str) -> bool:
    """Whether the kernel goes on in the memory of the state, where rows of a group are no items of a batch."""
    return way == "forward" and hasattr(rank.kernel, "carry")
