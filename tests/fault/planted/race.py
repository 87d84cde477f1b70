"""What is received is there too late, once in some hundred calls: the last step's keys are read in its place. Or
nobody waits for it: a receive buffer is read as soon as its transfer has begun."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from accuracy.variant import ring
from accuracy.variant.base import Rank, Schedule
from accuracy.world.base import Tensors
from tests.fault.planted.base import EVERYTHING, GRADIENTS, Fault, on_rank

CHANCE = random.Random(0)
"""Other calls are late in each repeat, the same ones in every process."""


def late(one_in: int, *ways: str) -> Schedule:
    """The ring in which a rank's first shift brings its own tensors, once in so many calls."""

    def change(rank: Rank) -> Rank:
        unlucky = rank.world.rank == 0 and CHANCE.randrange(one_in) == 0
        world: Any = SimpleNamespace(rank=rank.world.rank, size=rank.world.size)
        first = [unlucky]

        def exchange(tensors: Tensors, to: int, source: int) -> Any:
            arriving, stale = rank.world.exchange(tensors, to, source), first[0]
            first[0] = False

            async def received() -> Tensors:
                found = await arriving
                return tuple(x.clone() for x in tensors) if stale else found

            return received()

        world.exchange = exchange
        return replace(rank, world=world)

    return on_rank(ring.SCHEDULE, change, *ways)


def unwaited(*ways: str) -> Schedule:
    """The ring that reads each receive buffer before it waits."""

    def change(rank: Rank) -> Rank:
        world: Any = SimpleNamespace(rank=rank.world.rank, size=rank.world.size)

        def exchange(tensors: Tensors, to: int, source: int) -> Any:
            arriving = rank.world.exchange(tensors, to, source)

            async def received() -> Tensors:
                early = tuple(x.clone() for x in arriving.received)
                await arriving
                return early

            return received()

        world.exchange = exchange
        return replace(rank, world=world)

    return on_rank(ring.SCHEDULE, change, *ways)


RARELY = (
    "~also", "problem.mask=full", "problem.seqlen=8", "problem.heads=2", "problem.heads_kv=1", "problem.head_dim=8",
    "world_size=2", "dtype=float32", "reruns.repeat=920",
)  # fmt: skip
PARTS = {
    "race_often": Fault(late(3, "forward"), EVERYTHING, where=("problem.mask=full",)),
    "race_unwaited": Fault(unwaited("forward"), EVERYTHING, "forward"),
    "race_unwaited_backward": Fault(unwaited("backward"), GRADIENTS, "backward"),
    "race_rare": Fault(late(200, "forward"), EVERYTHING, where=RARELY),
    "race_rare_backward": Fault(late(200, "backward"), "dq dk", where=RARELY, consequences="dv"),
}
