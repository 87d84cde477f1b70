"""`Llama3` of a simulated world in fewer kernel calls, every bit the same: the ranks run as coroutines, as they stand,
but several groups of heads are gathered together, and are one call, as items of its batch, where the kernel's
`foldable` says that this changes no bit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.simulate.batched import fold
from accuracy.variant import llama3
from accuracy.variant.base import Rank
from accuracy.variant.llama3 import Llama3
from accuracy.variant.ring import COPIED_ELEMENTS
from accuracy.world import simulated
from accuracy.world.base import Results, Tensors


def forward(schedule: Llama3, rank: Rank, shards: Sequence[Tensors]) -> list[Results]:
    """`Llama3.forward` on q, k, v of every rank: out, lse of each. rank: any of them, for what all share. Raises
    RankFailed with the rank whose call raised."""
    q, k, _ = shards[0]
    alike = grouped(rank, "forward", q, k)
    return simulated.run(
        lambda world: schedule.forward(replace(alike, world=world), *shards[world.rank]), rank.world.size
    )


def backward(schedule: Llama3, rank: Rank, shards: Sequence[Tensors]) -> list[Results]:
    """`Llama3.backward` on dout, q, k, v, out, lse of every rank: dq, dk, dv of each. rank, errors: as for
    `forward`."""
    _, q, k, *_ = shards[0]
    alike = grouped(rank, "backward", q, k)
    return simulated.run(
        lambda world: schedule.backward(replace(alike, world=world), *shards[world.rank]), rank.world.size
    )


def grouped(rank: Rank, way: str, q: Tensor, k: Tensor) -> Rank:
    """Return the rank with a larger stride of heads, and a kernel that takes so many groups of heads as items of its
    batch. q, k: of one rank, for their shapes."""
    rank = fold.of_items(rank, len(q))
    groups = llama3.head_groups(rank, q.shape[2], k.shape[2])
    most = _at_once(rank, way, groups, q, k)
    count = next(each for each in range(most, 0, -1) if len(groups) % each == 0)
    if count == 1:
        return rank
    kernel: Any = _ByGroups(rank.kernel, count)
    stride = rank.options.heads_stride * count
    return replace(rank, kernel=kernel, options=replace(rank.options, heads_stride=stride))


def _at_once(rank: Rank, way: str, groups: Sequence[llama3.HeadGroup], q: Tensor, k: Tensor) -> int:
    """Return how many groups of heads may be one kernel call of every rank. What all ranks have for all ranks has at
    most `COPIED_ELEMENTS`, or is of one group."""
    foldable, size = getattr(rank.kernel, "foldable", None), rank.world.size
    if foldable is None:
        return 1
    query, key = q[:, :, groups[0].query], k[:, :1, groups[0].kv]
    blocks = {
        (block.query.stop - block.query.start, block.key.stop - block.key.start)
        for number in range(size) for block in llama3.blocks(rank.seated(number), q.shape[1])
    }  # fmt: skip
    room = COPIED_ELEMENTS // (size**2 * k[:, :, groups[0].kv].numel()) if way == "backward" else len(groups)
    most = max(1, min(room, len(groups)))
    return min(foldable(way, most, query[:, :rows], key.expand(-1, keys, -1, -1)) for rows, keys in blocks)


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
