"""`Ring` for all ranks of a simulated world at once: every bit of theirs, in few calls.

The ranks are beside each other in the batch of one tensor, (W B, S/W, ...). Keys and values stay where they are and
are looked up where they would have come from; what travel would have rounded is rounded. Consecutive ranks that compute
the same blocks of consecutive sources are one merge and one sum, and their kernel calls are folded
(`accuracy.simulate.batched.fold`).
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from accuracy.kernel.block.running_state import RunningState
from accuracy.simulate.batched import fold
from accuracy.simulate.batched.fold import Call, RankPartials, RankSums, blamed, items
from accuracy.variant.base import Rank
from accuracy.variant.ring import Blocks, Ring
from accuracy.world.base import Results, Tensors


def forward(schedule: Ring, rank: Rank, shards: Sequence[Tensors]) -> list[Results]:
    """`Ring.forward` on q, k, v of every rank: out, lse of each. rank: any of them, for what all share. Raises
    RankFailed with the ranks of a call that raised."""
    size, batch = len(shards), len(shards[0][0])
    rank = fold.of_items(rank, batch)
    q, *kv = (_joined(same) for same in zip(*shards, strict=True))
    partials, like = RankPartials(rank.running(q), size, batch), (q[:batch], kv[0][:batch])
    for calls, k, v, _ in _turns(rank, schedule.blocks, kv, together=True):
        reads = ("rows", q), ("keys", k), ("keys", v)
        if isinstance(partials.whole, RunningState):
            _carry(rank, partials, calls, reads)
            continue
        for call, (out, lse) in fold.computed("forward", rank, calls, reads, like, rank.attend):
            for some, partial in partials.parts(call.ranks):
                mine = items(range(some.start - call.ranks.start, some.stop - call.ranks.start), batch)
                with blamed(some):
                    partial.add(call.block, out[mine], lse[mine])
    parts = [partial.result(rank.dtype, rank.lse_dtype) for _, partial in partials.parts(range(size))]
    return _by_rank(batch, [same[0] if len(same) == 1 else torch.cat(same) for same in zip(*parts, strict=True)])


def _carry(rank: Rank, partials: RankPartials, calls: Sequence[Call], reads: fold.Reads) -> None:
    """Let a kernel that carries its running state go on over the calls' keys."""
    for call in calls:
        for some, partial in partials.parts(call.ranks):
            with blamed(some):
                _, k, v = fold.operands(call._replace(ranks=some), reads, partials.batch)
                partial.add(call.block, k, v, rank.scale)


def backward(schedule: Ring, rank: Rank, shards: Sequence[Tensors]) -> list[Results]:
    """`Ring.backward` on dout, q, k, v, out, lse of every rank: dq, dk, dv of each. rank, errors: as for `forward`. dk
    and dv stay with the keys they belong to, and are rounded at each of their hops as the wire does."""
    size, batch = len(shards), len(shards[0][0])
    rank = fold.of_items(rank, batch)
    dout, q, *kv, out, lse = (_joined(same) for same in zip(*shards, strict=True))
    named, like = {"dq": q, "dk": kv[0], "dv": kv[1]}, (q[:batch], kv[0][:batch])
    dq, dk, dv = sums = [RankSums(x, rank.accumulator(name, x).dtype, size, batch) for name, x in named.items()]
    dtype = str(rank.dtype).removeprefix("torch.")
    exact = rank.precision.dtype("gradient_wire", dtype) == rank.precision.dtype("dkv_accumulator", dtype)
    for calls, k, v, hop in _turns(rank, schedule.blocks, kv, together=exact):
        reads = ("rows", dout), ("rows", q), ("keys", k), ("keys", v), ("rows", out), ("lse", lse)
        for call, (dq_block, dk_block, dv_block) in fold.computed(
            "backward", rank, calls, reads, like, rank.differentiate
        ):
            dq.add(call.ranks, call.block.query, dq_block)
            dk.add(call.sources, call.block.key, dk_block)
            dv.add(call.sources, call.block.key, dv_block)
        for total in (dk, dv) if hop else ():
            now = total.value()
            now.copy_(rank.sent("gradient_wire", now))
    return _by_rank(batch, [total.value().to(rank.dtype) for total in sums])


def _turns(
    rank: Rank, blocks: Blocks, kv: Sequence[Tensor], together: bool
) -> Iterator[tuple[Sequence[Call], Tensor, Tensor, bool]]:
    """Yield the calls of each step, or `together` of all steps with others' keys, the keys and values that they read,
    and whether sums travel on then. Keys and values are the ranks' own, or as they arrive, rounded to the wire's dtype
    and read in the case's. Own keys that come last leave the first step empty."""
    k, v = kv
    arrived = rank.sent("wire", k).to(rank.dtype), rank.sent("wire", v).to(rank.dtype)
    own, *others = fold.steps(rank, blocks, k.shape[1])
    diagonal_last = rank.precision.ring_order == "diagonal_last"
    yield () if diagonal_last else own, k, v, bool(others)
    for calls in [tuple(chain.from_iterable(others))] if together and others else others:
        yield calls, *arrived, True
    if diagonal_last:
        yield own, k, v, False


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
