"""A rank returns another rank's shard, or one gradient for another of the same shape."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from accuracy.variant.base import Rank
from tests.fault.planted.base import Fault, Schedule, returning

Owner = Callable[[int, int], int]
"""(rank, size) -> whose shard it returns."""


def of(owner: Owner, way: str, *places: int) -> Schedule:
    """What `way` returns, with the results at some places those of another rank."""

    async def exchanged(rank: Rank, *results: Tensor) -> tuple[Any, ...]:
        mine = owner(rank.world.rank, rank.world.size)
        every = await rank.world.all_gather(results)
        return tuple(x[mine] if place in places else results[place] for place, x in enumerate(every))

    return returning(way, exchanged)


def shifted(rank: int, size: int) -> int:
    """One hop too few."""
    return (rank - 1) % size


def reversed_order(rank: int, size: int) -> int:
    """The ranks in the order of another ring direction."""
    return size - 1 - rank


def swapped(rank: int, size: int) -> int:
    """Pairs of neighbours."""
    return min(rank ^ 1, size - 1)


SHARD = ("shard",)
PARTS = {
    "shard_dkv_shifted": Fault(of(shifted, "backward", 1, 2), "dk dv", causes=SHARD),
    "shard_dk_shifted": Fault(of(shifted, "backward", 1), "dk", causes=SHARD),
    "shard_dq_reversed": Fault(of(reversed_order, "backward", 0), "dq", causes=SHARD),
    "shard_dkv_swapped": Fault(of(swapped, "backward", 1, 2), "dk dv", causes=SHARD),
    "shard_lse_shifted": Fault(of(shifted, "forward", 1), "lse dq dk dv", causes=SHARD),
    "shard_dk_is_dv": Fault(returning("backward", lambda rank, dq, dk, dv: (dq, dv, dk)), "dk dv"),
}
