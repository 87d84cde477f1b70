"""What faults are made with: a healthy schedule or rank with one function exchanged for a broken one."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from accuracy.core.masks import Block
from accuracy.core.precision import Precision
from accuracy.kernel.block.running_state import RunningState
from accuracy.simulate.fold import FoldedRank
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

    def given_changed(way: str) -> Callable[..., Any]:
        async def run(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
            alone = Rank(**{field.name: getattr(rank, field.name) for field in fields(Rank)})
            alone = alone if isinstance(rank, FoldedRank) else rank  # what is folded is not computed by the rank
            results: Results = await getattr(schedule, way)(change(alone), *tensors)
            return results

        return run

    return changed(schedule, **{way: given_changed(way) for way in ways})


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
                join_each(formula, found.out[:, rows], found._before(rows), found.lse[:, rows], outs, lses)

            found._join = join  # type: ignore[method-assign]
            return found

        return changed(rank, running=running)

    return on_rank(schedule, change, "forward")


@dataclass(frozen=True)
class Fault:
    """An entry of a table of faults, `PARTS`, found as `tests.fault.FILE:NAME`.

    wrong: the tensors that must get a label other than `rounding`; consequences: those that may get one, as what is
    wrong there hardly outweighs rounding; all others must be `rounding` (delta goes with out).
    way: which direction is broken, `forward`, `backward` or `both`; the other is `healthy`, a variant of that name.
    where: what of the small problem must be changed for the fault to execute; causes: the families of hypotheses that
    may be proven, none where a sentence can only describe.
    """

    schedule: Schedule
    wrong: str
    way: str = "both"
    where: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    healthy: str = "ring"
    consequences: str = ""

    @property
    def SCHEDULE(self) -> Schedule:
        """As a file with one schedule has it."""
        return self.schedule


EVERYTHING, GRADIENTS = "out lse dq dk dv", "dq dk dv"


def returning(way: str, change: Callable[..., Any], schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule with `change(rank, *results)` for what its `way` returns; may be a coroutine."""

    async def run(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
        found = change(rank, *await getattr(schedule, way)(rank, *tensors))
        results: Results = await found if inspect.isawaitable(found) else found
        return results

    return changed(schedule, **{way: run})


def given(way: str, change: Callable[..., Any], schedule: Schedule = ring.SCHEDULE) -> Schedule:
    """The schedule whose `way` is given what `change(rank, *tensors)` makes: a rank, then tensors."""

    async def run(self: Schedule, rank: Rank, *tensors: Tensor) -> Results:
        results: Results = await getattr(schedule, way)(*change(rank, *tensors))
        return results

    return changed(schedule, **{way: run})


@dataclass(frozen=True)
class Hidden(Block):
    """A block that no query sees."""


OWN_KEYS_LAST = Precision(ring_order="diagonal_last")


@dataclass(frozen=True)
class HiddenBlocks(ring.Ring):
    """The ring's forward without its shortcut: hidden blocks are merged too, with out = 0 and lse = `empty_lse`. Own
    keys come last, so that they come first."""

    precision: Precision = OWN_KEYS_LAST
    empty_lse: float = -torch.inf

    async def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        """See `Schedule.forward`."""

        def every_block(rank: Rank, source: int, length: int) -> list[Block]:
            whole = slice(0, length)
            return self.blocks(rank, source, length) or [Hidden(whole, whole, causal=True)]

        def attend(changed_rank: Rank, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            if not isinstance(block, Hidden):
                return type(rank).attend(changed_rank, block, q, k, v)
            batch, length, heads, _ = q.shape
            out = torch.zeros_like(q, dtype=rank.place("partial"))
            return out, q.new_full((batch, heads, length), self.empty_lse, dtype=rank.lse_dtype)

        return await ring.Ring(blocks=every_block).forward(changed(rank, attend=attend), q, k, v)


def softmax(q: Tensor, k: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Weights (B, H, Sq, Sk) and lse (B, H, Sq) in float64; causal aligned at the bottom right."""
    keys = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), keys.double()) * scale
    if causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool, device=q.device).triu(columns - rows + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    return torch.exp(scores - lse[..., None]), lse


def apply(weights: Tensor, v: Tensor) -> Tensor:
    """Weights (B, H, Sq, Sk) times values (B, Sk, Hk, D): (B, Sq, H, D) in float64."""
    values = v.repeat_interleave(weights.shape[1] // v.shape[2], dim=2)
    return torch.einsum("bhqk,bkhd->bqhd", weights, values.double())
