"""What is received is there too late, once in some hundred calls: the last step's keys are read in its place. Or
nobody waits for it: a receive buffer is read as soon as its transfer has begun."""

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from accuracy.variant.base import Rank, Schedule
from accuracy.world.base import Tensors
from tests.unit.fault.planted.base import EVERYTHING, GRADIENTS, Fault, on_rank

CHANCE = random.Random(0)
"""Other calls are late in each repeat, the same ones in every process."""


def exchanging(received: Callable[[Rank], Callable[[Tensors, Any], Any]], *ways: str) -> Schedule:
    """The ring whose exchanges bring what `received(rank)` makes of what was sent and of what arrives, which is to be
    awaited."""

    def change(rank: Rank) -> Rank:
        receive = received(rank)
        world: Any = SimpleNamespace(rank=rank.world.rank, size=rank.world.size)
        world.exchange = lambda tensors, to, source: receive(tensors, rank.world.exchange(tensors, to, source))
        return replace(rank, world=world)

    return on_rank(change, *ways)


def late(one_in: int, *ways: str) -> Schedule:
    """The ring in which the first shift of rank 0 brings its own tensors, once in so many calls."""

    def received(rank: Rank) -> Any:
        unlucky = [rank.world.rank == 0 and CHANCE.randrange(one_in) == 0]

        def receive(sent: Tensors, arriving: Any) -> Any:
            stale, unlucky[0] = unlucky[0], False

            async def found() -> Tensors:
                here: Tensors = await arriving
                return tuple(x.clone() for x in sent) if stale else here

            return found()

        return receive

    return exchanging(received, *ways)


async def unwaited(sent: Tensors, arriving: Any) -> Tensors:
    """Each receive buffer is read before its transfer ends."""
    early = tuple(x.clone() for x in arriving.received)
    await arriving
    return early


RARELY = (
    "~also", "problem.mask=full", "problem.seqlen=8", "problem.heads=2", "problem.heads_kv=1", "problem.head_dim=8",
    "world_size=2", "dtype=float32", "reruns.repeat=920",
)  # fmt: skip
PARTS = {
    "race_often": Fault(late(3, "forward"), EVERYTHING, where=("problem.mask=full",)),
    "race_unwaited": Fault(exchanging(lambda rank: unwaited, "forward"), EVERYTHING, way="forward"),
    "race_unwaited_backward": Fault(exchanging(lambda rank: unwaited, "backward"), GRADIENTS, way="backward"),
    "race_rare": Fault(late(200, "forward"), EVERYTHING, where=RARELY),
    "race_rare_backward": Fault(late(200, "backward"), "dq dk", where=RARELY, consequences="dv"),
}
