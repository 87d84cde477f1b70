"""What a schedule is, and what it is given: one rank's world, kernel, precision policy and problem."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core import plugins
from accuracy.core import sharding as shardings
from accuracy.core.case import Case, Part
from accuracy.core.dtype import INPUT_FORMATS, Precision
from accuracy.core.masks import Block, Visibility, whole_blocks
from accuracy.core.quantisation import FORMATS
from accuracy.kernel.base import Kernel
from accuracy.kernel.block import calls
from accuracy.kernel.block.calls import Scores
from accuracy.kernel.block.running_state import RunningState, SoftmaxState
from accuracy.runtime.rounding import by_heads
from accuracy.variant.join import Accumulator, Running
from accuracy.world.base import Results, Tensors, World

PUBLISHED = Precision()
WROTE = "the variant wrote to its inputs"


class Seat(NamedTuple):
    """Which rank of how many, for what is asked of blocks alone: a world that carries nothing."""

    rank: int
    size: int


@dataclass(frozen=True)
class Rank:
    """One rank's side of a case. dtype: the case's; options: the schedule's knobs, an instance of its `options`."""

    world: World
    kernel: Kernel
    precision: Precision
    dtype: torch.dtype
    scores: Scores
    visibility: Visibility
    query_offset: int  # the key position of the first query
    sharding: str
    options: Any = None
    value_dim: int | None = None  # of v and out; None: that of q and k
    sinks: tuple[float, ...] = ()  # one logit a head, of a schedule that computes with them itself

    @property
    def scale(self) -> float:
        """The softmax scale."""
        return self.scores.scale

    @property
    def causal(self) -> bool:
        """Whether a query sees keys up to its own position only."""
        return self.visibility.causal

    def seated(self, rank: int) -> "Rank":
        """Return the rank as another one of its world, for what is asked of blocks alone."""
        seat: Any = Seat(rank, self.world.size)
        return replace(self, world=seat)

    def place(self, place: str) -> torch.dtype:
        """The dtype that the precision policy sets for a rounding place."""
        return getattr(torch, self.precision.dtype(place, str(self.dtype).removeprefix("torch.")))

    def sent(self, place: str, x: Tensor) -> Tensor:
        """Return x (B, S, heads, D) as it travels on a wire: rounded to the place's dtype, or quantised to 8 bits with
        scales and restored."""
        word = self.precision.dtype(place, str(self.dtype).removeprefix("torch."))
        return by_heads(x, FORMATS[INPUT_FORMATS[word]]) if word in INPUT_FORMATS else x.to(self.place(place))

    def widest(self, x: Tensor) -> Tensor:
        """Return a rank's tensor (B, n_r, heads, D), with zeros behind its tokens where another rank holds more, as
        buffers that travel have one size."""
        missing = shardings.most(self.sharding, x.shape[1]) - x.shape[1]
        return F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x

    @property
    def lse_dtype(self) -> torch.dtype:
        """The dtype that lse is stored in: float32, or float64 in a float64 case."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def running(self, q: Tensor) -> Running | RunningState:
        """Return an empty running partial for the queries q (B, S, H, D); the kernel's own state where it carries
        one."""
        carry = getattr(self.kernel, "carry", None)
        if carry is not None:
            return RunningState(carry, q, SoftmaxState.empty(q))
        return Running.empty(self.unfilled(q), self.place("out_accumulator"), self.place("lse"), self.precision.merge)

    def unfilled(self, q: Tensor) -> Tensor:
        """Return memory for the out (B, S, H, Dv) of the queries q (B, S, H, D)."""
        return q.new_empty(*q.shape[:-1], self.value_dim or q.shape[-1])

    def accumulator(self, name: str, like: Tensor) -> Accumulator:
        """Return an empty sum of the gradient `name` (dq, dk, dv), shaped `like` (B, S, heads, D)."""
        return Accumulator(like, self.place("dq_accumulator" if name == "dq" else "dkv_accumulator"))

    def join(self, running: Running | RunningState, block: Block, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Bring a block into the running partial: by going on in the kernel, or by merging what the kernel returns."""
        if isinstance(running, RunningState):
            running.add(block, k[:, block.key], v[:, block.key], self.scale)
        else:
            running.add(block, *self.attend(block, q, k, v))

    def attend(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the kernel's partial of one block: out (B, S', H, D) and lse (B, H, S')."""
        return calls.forward(self.kernel, self.scores, block, q, k, v, self.place("partial"))

    def differentiate(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """Return the kernel's dq of the block's queries and dk, dv of its keys, for out and lse over all keys."""
        dtype = self.place("gradient_partial")
        return calls.backward(self.kernel, self.scores, block, dout, q, k, v, out, lse, dtype)

    def blocks_between(self, source: int, length: int) -> list[Block]:
        """Return the blocks in which this rank's queries see the keys of rank `source`, in local positions. length: the
        tokens of each rank. Striped shards cannot use it: they have no runs of consecutive tokens."""
        mine, theirs = (
            shardings.segments(self.sharding, rank, length, self.world.size) for rank in (self.world.rank, source)
        )
        return [
            block.shifted(query - rows.start, key - columns.start)
            for rows, query in mine
            for columns, key in theirs
            for block in self.visibility.blocks(
                (query, query + rows.stop - rows.start), (key, key + columns.stop - columns.start)
            )
        ]

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return out (B, Sq, H, D) and lse (B, H, Sq) of all keys (B, S, Hk, D); nothing is merged."""
        return calls.forward_rows(lambda block: self.attend(block, q, k, v), self._blocks_of_all(q, k), q, k)

    def differentiate_rows(self, dout: Tensor, q: Tensor, k: Tensor, *others: Tensor) -> Tensors:
        """Return dq (B, Sq, H, D), dk, dv (B, S, Hk, D); others: v, and out and lse of all keys."""
        blocks = self._blocks_of_all(q, k)
        return calls.backward_rows(lambda each: self.differentiate(each, dout, q, k, *others), blocks, q, k)

    def _blocks_of_all(self, q: Tensor, k: Tensor) -> list[Block]:
        """Return the blocks of all queries and keys: every query is in one."""
        return whole_blocks(self.visibility, self.query_offset, q.shape[1], k.shape[1])


@dataclass(frozen=True)
class Schedule:
    """How each rank computes attention, and what it can do; a subclass has `forward` and `backward`, of one rank.

    shardings: those that it understands; features: of `Problem.features`, the masks and shapes that it knows beyond
    causal and full ones of equal lengths; precision: its published policy; forward_places, backward_places: the
    policy's places that it has; gradients: whether it has a backward; one_device: whether it runs on one rank only;
    kernel: the only one that it runs on, if so; any_lse_dtype: whether lse may come in another dtype than ours, and is
    then held to that dtype's precision; traced: whether every join has all of the rank's heads, so that a trace can
    compare it; merges: whether it does more than return what the kernel does; low_wires: whether its wires may have 8
    bits; own_sinks: whether it computes with sinks itself and returns their gradient; options: the frozen dataclass of
    its knobs, if it has any.
    """

    shardings: tuple[str, ...] = ("contiguous",)
    features: tuple[str, ...] = ()
    precision: Precision = PUBLISHED
    forward_places: tuple[str, ...] = ()
    backward_places: tuple[str, ...] = ()
    gradients: bool = True
    one_device: bool = False
    kernel: str | None = None
    any_lse_dtype: bool = False
    traced: bool = True
    merges: bool = True
    low_wires: bool = False
    own_sinks: bool = False
    options: Callable[..., Any] | None = None

    def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Awaitable[Results | tuple[Any, ...]]:
        """Return out (B, S/W, H, D), lse (B, H, S/W), and whatever else its backward is to be given, from the shards q
        (B, S/W, H, D), k and v (B, S/W, Hk, D)."""
        raise NotImplementedError

    def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *forwarded: Any
    ) -> Awaitable[Results]:
        """Return dq (B, S/W, H, D), dk, dv (B, S/W, Hk, D), from the shards and what the forward returned."""
        raise NotImplementedError

    def unsupported(self, case: Case) -> str | None:
        """Return why it cannot run a case, or None."""
        if self.one_device and case.world_size > 1:
            return f"{case.variant.name} runs on one device: use world_size=1, not {case.world_size}"
        return None

    def knows(self, case: Case) -> tuple[str, ...]:
        """Return the features of a problem that it can do in a case."""
        return self.features

    def missing(self, tensor: str) -> str:
        """Return why one of its tensors has no numbers."""
        return f"the variant returns no {tensor}"

    def load(self, case: Case) -> bool:
        """Import what changes torch for good, which no case is told for; return whether it was not there before."""
        return False

    def code(self, case: Case) -> str:
        """Return the name of outside code that can change the numbers, such as a package and its version."""
        return ""


@dataclass(frozen=True)
class ForwardOnly(Schedule):
    """A schedule for inference."""

    gradients: bool = False

    async def backward(self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *forwarded: Any) -> Results:
        """Return no gradients."""
        return None, None, None


def schedule_of(part: Part) -> Schedule:
    """Return the schedule in a part's file."""
    schedule: Schedule = plugins.load(part.source).SCHEDULE
    return schedule
