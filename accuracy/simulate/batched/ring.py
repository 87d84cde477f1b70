"""`Ring` for all ranks of a simulated world at once: every bit of theirs, in few calls.

The ranks are beside each other in the batch of one tensor, (W B, S/W, ...). Keys and values stay where they are and
are looked up where they would have come from; what travel would have rounded is rounded. Consecutive ranks that compute
the same blocks of consecutive sources are one kernel call, one merge and one sum, or as few as the kernel's `foldable`
says keep every bit; so are blocks of one rank below each other (`accuracy.simulate.batched.key_group`), and the kernel
calls of several steps (`accuracy.simulate.batched.operands`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from accuracy.kernel.block.running_state import RunningState
from accuracy.kernel.triton import available
from accuracy.simulate.batched import fold, operands
from accuracy.simulate.batched.key_group import KeyGroup
from accuracy.variant.base import Rank
from accuracy.variant.join import Accumulator, Running
from accuracy.variant.ring import Blocks
from accuracy.world.base import Results, Tensors
from accuracy.world.simulated import RankFailed

T = TypeVar("T", Running | RunningState, Accumulator)


class RankStates(Generic[T]):
    """What every rank keeps between steps, side by side in one memory, (W B, ...), so that consecutive ranks of equal
    progress are one slice. whole: of all ranks, with no block yet; each: how far each rank has come."""

    def __init__(self, whole: T, size: int, batch: int) -> None:
        self.whole: T = whole
        self.batch = batch
        self.each: list[Any] = [whole.progress] * size

    def parts(self, ranks: range) -> Iterator[tuple[range, T]]:
        """The whole cut where the progress of consecutive ranks changes: the ranks, and their part. What the caller has
        added to a part is noted when it asks for the next."""
        for progress, alike in groupby(ranks, key=self.each.__getitem__):
            several = list(alike)
            some = range(several[0], several[-1] + 1)
            part = self.whole.part(items(some, self.batch), progress)
            yield some, part
            self.each[some.start : some.stop] = [part.progress] * len(some)


def items(ranks: range, batch: int) -> slice:
    """Where consecutive ranks are in a batch in which each has `batch` items."""
    return slice(ranks.start * batch, ranks.stop * batch)


def forward(rank: Rank, blocks: Blocks, shards: Sequence[Tensors]) -> list[Results]:
    """`Ring.forward` on q, k, v of every rank: out, lse of each. rank: any of them, for what all share. Raises
    RankFailed with the ranks of a call that raised."""
    size, batch = len(shards), len(shards[0][0])
    rank = fold.of_items(rank, batch)
    with _side_by_side(shards) as (q, *kv):
        partials, reader = RankStates(rank.running(q), size, batch), operands.Operands(batch)
        several = not isinstance(partials.whole, RunningState)
        for runs, k, v, _ in _turns(rank, blocks, q[:batch], kv, several):
            calls = list(fold.calls(rank, "forward", runs, q[:batch], k[:batch]))
            reads = (KeyGroup.rows, q), (KeyGroup.keys, k), (KeyGroup.keys, v)
            with blamed(range(size)):
                ahead = reader.by_call(reader.ahead(calls, reads, rank.attend) if several else ())
            for call in calls:
                for together in call.parts():
                    for ranks, partial in partials.parts(together):
                        with blamed(ranks):
                            _join(rank, partial, call, ranks, ahead.get(id(call)), reader, reads)
        parts = [partial.result(rank.dtype, rank.lse_dtype) for _, partial in partials.parts(range(size))]
    return _by_rank(batch, [same[0] if len(same) == 1 else torch.cat(same) for same in zip(*parts, strict=True)])


def _join(
    rank: Rank, partial: Running | RunningState, call: fold.Call, ranks: range, ahead: Tensors | None,
    reader: operands.Operands, reads: Sequence[operands.Read],
) -> None:  # fmt: skip
    """Some ranks of a call into their partials; ahead: those of all its ranks, where they are computed."""
    if isinstance(partial, RunningState):
        _, k, v = reader.of(call, ranks, reads)
        partial.add(call.group.block, k, v, rank.scale)
        return
    if ahead is not None:
        some = items(range(ranks.start - call.ranks.start, ranks.stop - call.ranks.start), reader.batch)
        out, lse = (x[some] for x in ahead)
    else:
        out, lse = rank.attend(call.group.one, *reader.of(call, ranks, reads))
    fold.merge(partial, call.group, out, lse)


def backward(rank: Rank, blocks: Blocks, shards: Sequence[Tensors]) -> list[Results]:
    """`Ring.backward` on dout, q, k, v, out, lse of every rank: dq, dk, dv of each. rank, errors: as for `forward`. dk
    and dv stay with the keys they belong to, and are rounded at each of their hops as the wire does."""
    size, batch = len(shards), len(shards[0][0])
    rank = fold.of_items(rank, batch)
    with _side_by_side(shards) as (dout, q, *kv, out, lse):
        named = zip(("dq", "dk", "dv"), (q, *kv), strict=True)
        sums = [RankStates(rank.accumulator(name, x), size, batch) for name, x in named]
        reader = operands.Operands(batch)
        for runs, k, v, hop in _turns(rank, blocks, q[:batch], kv, _is_exact(rank)):
            calls = list(fold.calls(rank, "backward", runs, q[:batch], k[:batch]))
            rows, keys = [(KeyGroup.rows, x) for x in (dout, q, out)], [(KeyGroup.keys, x) for x in (k, v)]
            reads = (*rows[:2], *keys, rows[2], (KeyGroup.lse, lse))
            with blamed(range(size)):
                lots = reader.ahead(calls, reads, rank.differentiate)
            if _sum_at_once(sums, calls, lots):
                continue
            ahead = reader.by_call(lots)
            for call in calls:
                parts = [ahead[id(call)]] if id(call) in ahead else []
                for ranks in () if parts else call.parts():
                    with blamed(ranks):
                        parts.append(rank.differentiate(call.group.one, *reader.of(call, ranks, reads)))
                _sum(sums, call, [same[0] if len(same) == 1 else torch.cat(same) for same in zip(*parts, strict=True)])
            if hop:
                for total in sums[1:]:
                    value = _value(total)
                    value.copy_(rank.sent("gradient_wire", value))
    return _by_rank(batch, [_value(total).to(rank.dtype) for total in sums])


def _is_exact(rank: Rank) -> bool:
    """Whether the wire leaves sums of dk and dv as they are."""
    dtype = str(rank.dtype).removeprefix("torch.")
    return rank.precision.dtype("gradient_wire", dtype) == rank.precision.dtype("dkv_accumulator", dtype)


def _turns(
    rank: Rank, blocks: Blocks, q: Tensor, kv: Sequence[Tensor], several: bool
) -> Iterator[tuple[Sequence[fold.Run], Tensor, Tensor, bool]]:
    """The runs of each step, or of `several`, the keys and values that they read, and whether sums travel on then. Keys
    and values are the ranks' own, or as they arrive, rounded to the wire's dtype and read in the case's. Own keys that
    come last leave the first step empty. q: of one rank, for its shape."""
    k, v = kv
    arrived = rank.sent("wire", k).to(rank.dtype), rank.sent("wire", v).to(rank.dtype)
    own, *others = fold.steps(rank, blocks, k.shape[1])
    diagonal_last = rank.precision.ring_order == "diagonal_last"
    yield () if diagonal_last else own, k, v, bool(others)
    for runs in operands.waves(others, q, k[: len(q)]) if several else others:
        yield runs, *arrived, True
    if diagonal_last:
        yield own, k, v, False


def _sum_at_once(
    sums: Sequence[RankStates[Accumulator]], calls: Sequence[fold.Call],
    lots: Sequence[tuple[list[fold.Call], Sequence[Tensor]]],
) -> bool:  # fmt: skip
    """Add all gradients of lots to sums that have begun, each lot's in one pass; False: nothing is added."""
    kernel = available.one_pass() if lots and on_gpu(lots[0][1][0]) else None
    if kernel is None or not all(all(total.each) for total in sums):
        return False
    order = operands.in_order(calls, [lot for lot, _ in lots])
    if not order:
        return False
    work = []
    for lot, gradients in (lots[place] for place in order):
        block, ranks = lot[0].group.block, tuple(call.ranks for call in lot)
        sources = tuple(call.sources(call.ranks) for call in lot)
        whose = (block.query, ranks), (block.key, sources), (block.key, sources)
        for total, blocks, (rows, parts) in zip(sums, gradients, whose, strict=True):
            work.append((_value(total)[:, rows], blocks, (parts, len(total.each), total.batch, blocks.device)))
    if not all(kernel.adds(memory, blocks) for memory, blocks, _ in work):
        return False
    for memory, blocks, known in work:
        kernel.add_listed(memory, blocks, operands.places(*known))
    return True


def on_gpu(x: Tensor) -> bool:
    """Where one pass over memory is a kernel."""
    return x.is_cuda


def _sum(sums: Sequence[RankStates[Accumulator]], call: fold.Call, gradients: Sequence[Tensor]) -> None:
    """Add a call's gradients, a block an item, to the ranks' dq, dk, dv."""
    group, sources = call.group, call.sources(call.ranks)
    if group.count > 1:
        _value(sums[0], call.ranks)  # a first block is taken as it is only where it has all rows
    _add(sums[0], call.ranks, group.whole.query, group.joined_rows(gradients[0]))
    for total, blocks in zip(sums[1:], gradients[1:], strict=True):
        if group.across > 1:
            _add_side_by_side(total, sources, group, blocks.unflatten(0, (-1, group.count)))
        else:
            _add(total, sources, group.whole.key, blocks.unflatten(0, (-1, group.count)))


def _add(total: RankStates[Accumulator], ranks: range, rows: slice, blocks: Tensor) -> None:
    batch = len(blocks) // len(ranks)
    for some, part in total.parts(ranks):
        part.add_each(rows, blocks[items(range(some.start - ranks.start, some.stop - ranks.start), batch)])


def _add_side_by_side(total: RankStates[Accumulator], ranks: range, group: KeyGroup, blocks: Tensor) -> None:
    """Blocks (N across, count, S'', Hk, D): where they are of all keys, as they lie."""
    value = _value(total, ranks)[items(ranks, total.batch), group.whole.key]
    if value.is_contiguous():
        value = value.view(-1, *blocks.shape[2:])
    else:
        blocks = group.joined_keys(blocks)
    Accumulator(value, value.dtype, value).add_each(slice(0, value.shape[1]), blocks)


def _value(total: RankStates[Accumulator], ranks: range | None = None) -> Tensor:
    """The sums of all ranks, zero where those of `ranks` (all) have not begun."""
    for _, part in total.parts(range(len(total.each)) if ranks is None else ranks):
        part.value()
    assert total.whole.memory is not None
    return total.whole.memory


@contextmanager
def _side_by_side(shards: Sequence[Tensors]) -> Iterator[Tensors]:
    """Each tensor of all ranks, (W B, ...); nobody may write to them."""
    batched = tuple(_joined(same) for same in zip(*shards, strict=True))
    versions = [x._version for x in batched]
    yield batched
    if [x._version for x in batched] != versions:
        raise RankFailed("all ranks: RuntimeError: the variant wrote to its inputs")


def _joined(ranks: Sequence[Tensor]) -> Tensor:
    """In one batch: where they lie if that is beside each other, as `cut` and `_by_rank` leave them; else copied."""
    first = ranks[0]
    places = range(first.storage_offset(), first.storage_offset() + len(ranks) * first.numel(), first.numel() or 1)
    memory = first.untyped_storage().data_ptr()
    if all(
        x.storage_offset() == place and x.untyped_storage().data_ptr() == memory and x.is_contiguous()
        for x, place in zip(ranks, places, strict=False)
    ):
        return first.as_strided((len(ranks) * first.numel(),), (1,)).view(-1, *first.shape[1:])
    return torch.cat(list(ranks))


def _by_rank(batch: int, batched: Sequence[Tensor]) -> list[Results]:
    return list(zip(*(x.split(batch) for x in batched), strict=True))


@contextmanager
def blamed(ranks: range) -> Iterator[None]:
    """An error of a call for some ranks says whose it was. Raises RankFailed."""
    try:
        yield
    except Exception as error:
        whose = f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start} to {ranks.stop - 1}"
        raise RankFailed(f"{whose}: {type(error).__name__}: {error}") from error
