"""`Llama3` for all ranks of a simulated world at once: every bit of theirs, each gather made and read once. A rank's
rows see more keys than those of the ranks before it, so each is a kernel call as before; what is the same for all, keys
and values in sequence, is not repeated, and groups of heads are gathered together and are one call, as items of its
batch, where the kernel's `foldable` says that this changes no bit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.simulate.batched import fold
from accuracy.simulate.batched.fold import blamed
from accuracy.variant import llama3
from accuracy.variant.base import Rank
from accuracy.variant.llama3 import HeadGroup, Llama3
from accuracy.variant.ring import COPIED_ELEMENTS
from accuracy.world import simulated
from accuracy.world.base import Results, Tensors


def forward(schedule: Llama3, rank: Rank, shards: Sequence[Tensors]) -> list[Results]:
    """`Llama3.forward` on q, k, v of every rank: out, lse of each. rank: any of them, for what all share. Raises
    RankFailed with the rank whose call raised."""
    queries, *kv = zip(*shards, strict=True)
    rank = fold.of_items(rank, len(queries[0]))
    found = [llama3.unfilled(rank, q) for q in queries]
    for group, everything, alike in _gathered(rank, "forward", queries[0], kv):
        for number, (mine, q, outs) in enumerate(zip(alike, queries, found, strict=True)):
            with blamed(range(number, number + 1)):
                llama3.attend(mine, everything, group, q, *outs)
    return list(found)


def backward(schedule: Llama3, rank: Rank, shards: Sequence[Tensors]) -> list[Results]:
    """`Llama3.backward` on dout, q, k, v, out, lse of every rank: dq, dk, dv of each. rank, errors: as for
    `forward`."""
    douts, queries, *kv, outs, lses = zip(*shards, strict=True)
    rank = fold.of_items(rank, len(queries[0]))
    found = [tuple(torch.empty_like(x) for x in each[1:4]) for each in shards]
    for group, everything, alike in _gathered(rank, "backward", queries[0], kv):
        parts: list[Tensors] = []
        each_rank = zip(alike, found, douts, queries, outs, lses, strict=True)
        for number, (mine, (dq, _, _), *given) in enumerate(each_rank):
            with blamed(range(number, number + 1)):
                parts.append(llama3.differentiate(mine, everything, group, dq, *given))
        for place, same in enumerate(zip(*parts, strict=True), 1):
            for gradients, x in zip(found, _summed(rank, torch.stack(same)), strict=True):
                gradients[place][:, :, group.kv] = x
    return list(found)


def _summed(rank: Rank, parts: Tensor) -> Tensor:
    """What every rank has for every rank, (W, W, B, S/W, Hk', D): each rank's sum, as `Llama3` orders it."""
    hops = simulated.by_hop(parts)
    return llama3.tree(list(hops)) if rank.options.add == "tree" else reduce(Tensor.add_, hops)


def _gathered(
    rank: Rank, way: str, q: Tensor, kv: Sequence[Sequence[Tensor]]
) -> Iterator[tuple[HeadGroup, Tensors, list[Rank]]]:
    """Groups of heads that may be one kernel call as one, their keys and values (B, S, Hk', D) in sequence, and every
    rank with a kernel that takes them so. q: of one rank, for its shape."""
    ranks = [rank.seated(number) for number in range(len(kv[0]))]
    groups = llama3.head_groups(rank, q.shape[2], kv[0][0].shape[2])
    for group, count in _together(groups, _at_once(ranks, way, groups, q, kv[0][0])):
        sent = (torch.stack([llama3.on_the_wire(rank, x, group) for x in same]) for same in kv)
        yield group, llama3.in_sequence(rank, tuple(sent)), [by_groups(each, count) for each in ranks]


def _together(groups: Sequence[HeadGroup], at_once: int) -> Iterator[tuple[HeadGroup, int]]:
    """Groups of heads beside each other as one, and how many they are."""
    for first in range(0, len(groups), at_once):
        some = groups[first : first + at_once]
        kv, query = slice(some[0].kv.start, some[-1].kv.stop), slice(some[0].query.start, some[-1].query.stop)
        yield HeadGroup(kv, query), len(some)


def _at_once(ranks: Sequence[Rank], way: str, groups: Sequence[HeadGroup], q: Tensor, k: Tensor) -> int:
    """How many groups of heads may be one kernel call of every rank. q, k: of one rank, for their shapes. What all
    ranks have for all ranks has at most `COPIED_ELEMENTS`, or is of one group."""
    foldable = getattr(ranks[0].kernel, "foldable", None)
    if foldable is None:
        return 1
    query, key = q[:, :, groups[0].query], k[:, :1, groups[0].kv]
    blocks = {
        (block.query.stop - block.query.start, block.key.stop - block.key.start)
        for rank in ranks for block in llama3.blocks(rank, q.shape[1])
    }  # fmt: skip
    room = COPIED_ELEMENTS // (len(ranks) ** 2 * k[:, :, groups[0].kv].numel()) if way == "backward" else len(groups)
    most = max(1, min(room, len(groups)))
    return min(foldable(way, most, query[:, :rows], key.expand(-1, keys, -1, -1)) for rows, keys in blocks)


def by_groups(rank: Rank, count: int) -> Rank:
    """The rank with a kernel that takes so many groups of heads as items of its batch."""
    grouped: Any = _ByGroups(rank.kernel, count)
    return rank if count == 1 else replace(rank, kernel=grouped)


@dataclass(frozen=True)
class _ByGroups:
    """A kernel, of heads in `count` groups: (B, S, H, D) becomes (B count, S, H / count, D)."""

    kernel: Kernel
    count: int

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        out, lse = self.kernel.forward(*(self._apart(x) for x in (q, k, v)), **how)
        return self._beside(out), lse.unflatten(0, (-1, self.count)).flatten(1, 2)

    def backward(self, *given: Tensor, **how: Any) -> Tensors:
        """See `Kernel.backward`."""
        dout, q, k, v, out = (self._apart(x) for x in given[:5])
        lse = given[5].unflatten(1, (self.count, -1)).flatten(0, 1)
        return tuple(self._beside(x) for x in self.kernel.backward(dout, q, k, v, out, lse, **how))

    def _apart(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.count, -1)).movedim(2, 1).flatten(0, 1)

    def _beside(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, self.count)).movedim(1, 2).flatten(2, 3)
