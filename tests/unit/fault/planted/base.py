"""What faults are made with: a healthy schedule or rank with one function exchanged for a broken one, and `Fault`."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from accuracy.results.table import TENSORS
from accuracy.variant import ring
from accuracy.variant.base import Rank, Schedule
from accuracy.world.base import Results, Tensors

EVERYTHING, GRADIENTS = "out lse dq dk dv", "dq dk dv"
WAYS = ("forward", "backward")


@dataclass(frozen=True)
class Fault:
    """A planted fault, an entry of a table `PARTS`, found as `tests.unit.fault.planted:NAME`.

    Attributes:
        schedule: a healthy one in which one thing is replaced.
        wrong: the tensors that must get `label` in some dtype and world size.
        label: "" for any label other than `rounding`.
        way: which direction is broken, `forward`, `backward` or `both`; the other is the ring's.
        where: what of the small problem must be changed for the fault to execute.
        causes: the families of hypotheses that may be proven, none where a sentence can only describe.
        consequences: tensors that may get a label, as what is wrong there hardly outweighs rounding. All others must be
            `rounding` (delta goes with out).
    """

    schedule: Schedule
    wrong: str
    label: str = ""
    way: str = "both"
    where: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    consequences: str = ""

    @property
    def SCHEDULE(self) -> Schedule:
        """As a file with one schedule has it."""
        return self.schedule

    @property
    def expected(self) -> dict[str, str]:
        """The label of each wrong tensor."""
        return dict.fromkeys(self.wrong.split(), self.label)

    @property
    def right(self) -> tuple[str, ...]:
        """The tensors that must be `rounding` throughout."""
        may_be = {*self.wrong.split(), *self.consequences.split()}
        may_be |= {"delta"} if "out" in may_be else set()
        return tuple(tensor for tensor in TENSORS if tensor not in may_be)


def reported(schedule: Schedule, label: str, wrong: str, *causes: str) -> Fault:
    """A fault of a public report, of which only what the report says is asked."""
    return Fault(schedule, wrong, label, causes=causes, consequences=EVERYTHING)


def changed(thing: Any, **methods: Callable[..., Any]) -> Any:
    """The rank, schedule or sum with some of its methods replaced."""
    kind = type("Changed", (type(thing),), methods)
    return kind(**{field.name: getattr(thing, field.name) for field in fields(thing)})


def receiving(change: Callable[..., tuple[Any, ...]], *ways: str, schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule whose ways are given what `change(rank, *tensors)` makes: a rank, then tensors."""

    def of_way(way: str) -> Callable[..., Any]:
        async def run(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
            return await getattr(schedule, way)(*change(rank, *tensors))

        return run

    return changed(schedule, **{way: of_way(way) for way in ways})


def returning(way: str, change: Callable[..., Any]) -> Schedule:
    """The ring with `change(rank, *results)` for what its `way` returns; may be a coroutine."""

    async def run(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
        found = change(rank, *await getattr(ring.SCHEDULE, way)(rank, *tensors))
        return await found if inspect.isawaitable(found) else found

    return changed(ring.SCHEDULE, **{way: run})


def on_rank(change: Callable[[Rank], Rank], *ways: str, schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule, which is given a changed rank in these ways."""
    return receiving(lambda rank, *tensors: (change(rank), *tensors), *ways, schedule=schedule)


def on_kernel(**broken: Callable[..., Tensors]) -> Schedule:
    """The ring on a kernel whose `forward`, `backward` or both are broken: they are given the healthy kernel first,
    then what its own would be given."""

    def change(rank: Rank) -> Rank:
        healthy = {way: getattr(rank.kernel, way) for way in WAYS}
        kernel: Any = SimpleNamespace(**healthy | {way: partial(call, rank.kernel) for way, call in broken.items()})
        return replace(rank, kernel=kernel)

    return on_rank(change, *broken)
