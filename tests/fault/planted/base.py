"""What faults are made with: a healthy schedule or rank with one function exchanged for a broken one, and `Fault`."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from accuracy.core.precision import Precision
from accuracy.kernel.block.running_state import RunningState
from accuracy.results.table import TENSORS
from accuracy.variant import ring
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.join import Accumulator, Formula, Running, join_each
from accuracy.world.base import Results, Tensors

Thing = TypeVar("Thing", Rank, Schedule)


def changed(thing: Thing, **methods: Callable[..., Any]) -> Thing:
    """The rank or schedule with some of its methods replaced."""
    kind = type("Changed", (type(thing),), methods)
    changed: Thing = kind(**{field.name: getattr(thing, field.name) for field in fields(thing)})
    return changed


def with_kernel(rank: Rank, **broken: Callable[..., Tensors]) -> Rank:
    """The rank on a kernel with another `forward`, `backward` or both, which are given the healthy kernel first, then
    what its own would be given."""
    healthy = {"forward": rank.kernel.forward, "backward": rank.kernel.backward}
    kernel: Any = SimpleNamespace(**healthy | {way: partial(call, rank.kernel) for way, call in broken.items()})
    return replace(rank, kernel=kernel)


def on_rank(schedule: Schedule, change: Callable[[Rank], Rank], *ways: str) -> Schedule:
    """The schedule, which is given a changed rank in its `forward`, `backward` or both."""

    def with_changed_rank(way: str) -> Callable[..., Any]:
        async def run(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
            results: Results = await getattr(schedule, way)(change(rank), *tensors)
            return results

        return run

    return changed(schedule, **{way: with_changed_rank(way) for way in ways})


def on_kernel(schedule: Schedule = ring.SCHEDULE, **broken: Callable[..., Tensors]) -> Schedule:
    """The schedule on a kernel whose `forward`, `backward` or both are broken, see `with_kernel`."""
    return on_rank(schedule, lambda rank: with_kernel(rank, **broken), *broken)


def summed_by(add: Callable[[Accumulator, slice, Tensor], None], precision: Precision) -> Schedule:
    """The ring with another `Accumulator.add` for its gradients."""
    kind = type("Changed", (Accumulator,), {"add": add})

    def change(rank: Rank) -> Rank:
        def accumulator(changed_rank: Rank, name: str, like: Tensor) -> Accumulator:
            plain = type(rank).accumulator(changed_rank, name, like)
            summed: Accumulator = kind(plain.like, plain.dtype)
            return summed

        return changed(rank, accumulator=accumulator)

    return on_rank(ring.Ring(precision=precision), change, "backward")


def unwritten(shape: Sequence[int], like: Tensor) -> Tensor:
    """Memory that was not written for this use. What an earlier tensor left in it is finite, whatever ran before: the
    allocator hands out what was freed last, or fresh pages of zeros. NaN where unwritten memory is poisoned."""
    torch.ones(*shape, dtype=like.dtype, device=like.device)
    return torch.empty(*shape, dtype=like.dtype, device=like.device)


def merged_by(formula: Formula, schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule with another formula that joins two partials. A case on a kernel that merges nothing fails."""

    def change(rank: Rank) -> Rank:
        def running(changed_rank: Rank, q: Tensor) -> Running:
            found = type(rank).running(changed_rank, q)
            if isinstance(found, RunningState):
                raise RuntimeError("the fault is in the merge, and this kernel carries its state unmerged: use another")

            def join(rows: slice, outs: Tensor, lses: Tensor) -> None:
                join_each(formula, found.out[:, rows], found.lse[:, rows], outs, lses)

            found._join = join  # type: ignore[method-assign]
            return found

        return changed(rank, running=running)

    return on_rank(schedule, change, "forward")


EVERYTHING, GRADIENTS = "out lse dq dk dv", "dq dk dv"


@dataclass(frozen=True)
class Fault:
    """A planted fault, an entry of a table `PARTS`, found as `tests.fault.planted:NAME`.

    Attributes:
        schedule: a healthy one in which one thing is replaced.
        wrong: the tensors that must get `label` in some dtype and world size.
        label: "" for any label other than `rounding`.
        way: which direction is broken, `forward`, `backward` or `both`; the other is `healthy`, a variant of that name.
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
    healthy: str = "ring"
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


def reported(schedule: Schedule, label: str, wrong: str) -> Fault:
    """A fault of a public report, of which only what the report says is asked."""
    return Fault(schedule, wrong, label, consequences=EVERYTHING)


def returning(way: str, change: Callable[..., Any], schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule with `change(rank, *results)` for what its `way` returns; may be a coroutine."""

    async def run(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
        found = change(rank, *await getattr(schedule, way)(rank, *tensors))
        results: Results = await found if inspect.isawaitable(found) else found
        return results

    return changed(schedule, **{way: run})


def receiving(way: str, change: Callable[..., Any], schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule whose `way` is given what `change(rank, *tensors)` makes: a rank, then tensors."""

    async def run(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
        results: Results = await getattr(schedule, way)(*change(rank, *tensors))
        return results

    return changed(schedule, **{way: run})
