"""`Ring` for all ranks of a simulated world at once: every bit of theirs, in few calls.

The ranks are beside each other in the batch of one tensor, (W B, S/W, ...). Keys and values stay where they are and
are looked up where they would have come from; what travel would have rounded is rounded. Consecutive ranks that compute
the same blocks of consecutive sources are one kernel call, one merge and one sum, or as few as the kernel's `foldable`
says keep every bit; so are the kernel calls of several steps (`accuracy.simulate.batched.operands`), whose partials are
then merged and gradients summed in few passes (`accuracy.simulate.batched.listed`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from accuracy.kernel.block.running_state import RunningState
from accuracy.simulate.batched import fold, listed, operands
from accuracy.simulate.batched.fold import RankStates, blamed, items, value
from accuracy.variant.base import Rank
from accuracy.variant.join import Accumulator, Running
from accuracy.variant.ring import Blocks
from accuracy.world.base import Results, Tensors
from accuracy.world.simulated import RankFailed


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
            reads = ("rows", q), ("keys", k), ("keys", v)
            computed = reader.ahead(calls, reads, rank.attend) if several else []
            if listed.merge(partials, tuple(calls), computed):
                continue
            ahead = reader.by_call(computed)
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
        partial.add(call.block, k, v, rank.scale)
        return
    if ahead is not None:
        some = items(range(ranks.start - call.ranks.start, ranks.stop - call.ranks.start), reader.batch)
        out, lse = (x[some] for x in ahead)
    else:
        out, lse = rank.attend(call.one, *reader.of(call, ranks, reads))
    partial.add(call.block, out, lse)


def backward(rank: Rank, blocks: Blocks, shards: Sequence[Tensors]) -> list[Results]:
    """`Ring.backward` on dout, q, k, v, out, lse of every rank: dq, dk, dv of each. rank, errors: as for `forward`. dk
    and dv stay with the keys they belong to, and are rounded at each of their hops as the wire does."""
    size, batch = len(shards), len(shards[0][0])
    rank = fold.of_items(rank, batch)
    with _side_by_side(shards) as (dout, q, *kv, out, lse):
        named = zip(("dq", "dk", "dv"), (q, *kv), strict=True)
        sums = [RankStates(rank.accumulator(name, x), size, batch) for name, x in named]
        reader, exact = operands.Operands(batch), _is_exact(rank)
        for runs, k, v, hop in _turns(rank, blocks, q[:batch], kv, exact):
            calls = list(fold.calls(rank, "backward", runs, q[:batch], k[:batch]))
            reads = ("rows", dout), ("rows", q), ("keys", k), ("keys", v), ("rows", out), ("lse", lse)
            computed = reader.ahead(calls, reads, rank.differentiate)
            if not listed.add(sums, tuple(calls), computed):
                ahead = reader.by_call(computed)
                for call in calls:
                    _sum(sums, call, ahead.get(id(call)) or reader.alone(call, reads, rank.differentiate))
            if hop:
                for total in sums[1:]:
                    now = value(total)
                    if not exact:
                        now.copy_(rank.sent("gradient_wire", now))
    return _by_rank(batch, [value(total).to(rank.dtype) for total in sums])


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


def _sum(sums: Sequence[RankStates[Accumulator]], call: fold.Call, gradients: Sequence[Tensor]) -> None:
    """Add a call's gradients to the ranks' dq, dk, dv."""
    of_keys = call.sources(call.ranks), call.block.key
    sides = (call.ranks, call.block.query), of_keys, of_keys
    for total, (ranks, rows), blocks in zip(sums, sides, gradients, strict=True):
        for some, part in total.parts(ranks):
            part.add(rows, blocks[items(range(some.start - ranks.start, some.stop - ranks.start), total.batch)])


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
