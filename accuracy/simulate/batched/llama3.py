"""`Llama3.forward` for all ranks of a simulated world at once: every bit of theirs, each gather made and read once. A
rank's rows see more keys than those of the ranks before it, so each is a kernel call as before; what is the same for
all, keys and values in sequence, is not repeated, and groups of heads are gathered together and are one call, as items
of its batch, where the kernel's `foldable` says that this changes no bit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.simulate.batched import fold
from accuracy.simulate.batched.fold import blamed
from accuracy.variant import llama3
from accuracy.variant.base import Rank
from accuracy.variant.llama3 import HeadGroup
from accuracy.world.base import Results, Tensors


def forward(rank: Rank, shards: Sequence[Tensors]) -> list[Results]:
    """`Llama3.forward` on q, k, v of every rank: out, lse of each. rank: any of them, for what all share. Raises
    RankFailed with the rank whose call raised."""
    queries, *kv = zip(*shards, strict=True)
    rank = fold.of_items(rank, len(queries[0]))
    ranks = fold.at_every_place(rank, len(shards))
    found = [llama3.unfilled(rank, q) for q in queries]
    groups = llama3.head_groups(rank, queries[0].shape[2], kv[0][0].shape[2])
    for group, count in _together(groups, _at_once(ranks, groups, queries[0], kv[0][0])):
        gathered = tuple(torch.stack([llama3.on_the_wire(rank, x, group) for x in same]) for same in kv)
        everything = llama3.in_sequence(rank, gathered)
        for number, (mine, q, outs) in enumerate(zip(ranks, queries, found, strict=True)):
            with blamed(range(number, number + 1)):
                llama3.attend(by_groups(mine, count), everything, group, q, *outs)
    return list(found)


def _together(groups: Sequence[HeadGroup], at_once: int) -> Iterator[tuple[HeadGroup, int]]:
    """Groups of heads beside each other as one, and how many they are."""
    for first in range(0, len(groups), at_once):
        some = groups[first : first + at_once]
        kv, query = slice(some[0].kv.start, some[-1].kv.stop), slice(some[0].query.start, some[-1].query.stop)
        yield HeadGroup(kv, query), len(some)


def _at_once(ranks: Sequence[Rank], groups: Sequence[HeadGroup], q: Tensor, k: Tensor) -> int:
    """How many groups of heads may be one kernel call of every rank. q, k: of one rank, for their shapes."""
    foldable = getattr(ranks[0].kernel, "foldable", None)
    if foldable is None:
        return 1
    query, key = q[:, :, groups[0].query], k[:, :1, groups[0].kv]
    blocks = {
        (block.query.stop - block.query.start, block.key.stop - block.key.start)
        for rank in ranks for block in llama3.blocks(rank, q.shape[1])
    }  # fmt: skip
    return min(foldable("forward", len(groups), query[:, :rows], key.expand(-1, keys, -1, -1)) for rows, keys in blocks)


def by_groups(rank: Rank, count: int) -> Rank:
    """The rank with a kernel that takes so many groups of heads as items of its batch."""
    grouped: Any = _ByGroups(rank.kernel, count)
    return rank if count == 1 else replace(rank, kernel=grouped)


@dataclass(frozen=True)
class _ByGroups:
    """A kernel's forward, of heads in `count` groups: (B, S, H, D) becomes (B count, S, H / count, D)."""

    kernel: Kernel
    count: int

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        q, k, v = (x.unflatten(2, (self.count, -1)).movedim(2, 1).flatten(0, 1) for x in (q, k, v))
        out, lse = self.kernel.forward(q, k, v, **how)
        out, lse = (x.unflatten(0, (-1, self.count)) for x in (out, lse))
        return out.movedim(1, 2).flatten(2, 3), lse.flatten(1, 2)
