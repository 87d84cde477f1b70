"""Some ranks of a world as a world of their own, made of exchanges between single ranks.

In: a world and the members, in the order of their places; every rank of the world is in one group, all groups are as
large and do the same operations in the same order.
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from accuracy.world.base import Tensors, Transfer, World


@dataclass(frozen=True)
class Group:
    """A member's view: the operations of `accuracy.world.base.World` that a ring and a head exchange need."""

    world: World
    members: Sequence[int]

    @property
    def rank(self) -> int:
        """The member's place."""
        return self.members.index(self.world.rank)

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.members)

    def exchange(self, tensors: Sequence[Tensor], to: int, source: int) -> Transfer:
        """See `World.exchange`."""
        return self.world.exchange(tensors, self.members[to], self.members[source])

    def all_to_all(self, tensors: Sequence[Tensor]) -> Awaitable[Tensors]:
        """See `World.all_to_all`: one exchange with each other member."""
        own, size = self.rank, self.size
        pairs = [((own + hop) % size, (own - hop) % size) for hop in range(1, size)]
        arriving = {source: self.exchange([x[to] for x in tensors], to, source) for to, source in pairs}

        async def received() -> Tensors:
            parts = {own: tuple(x[own] for x in tensors)}
            for source, transfer in arriving.items():
                parts[source] = await transfer
            return tuple(torch.stack(same) for same in zip(*(parts[place] for place in range(size)), strict=True))

        return received()
