"""What a schedule is, and what it is given: one rank's world, kernel, precision policy and problem."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from accuracy.core import plugins
from accuracy.core import sharding as shardings
from accuracy.core.case import Case, Part
from accuracy.core.dtype import INPUT_FORMATS
from accuracy.core.masks import Block, Visibility, whole_blocks
from accuracy.core.precision import Precision
from accuracy.core.quantisation import FORMATS
from accuracy.kernel.base import Kernel
from accuracy.kernel.block import calls
from accuracy.kernel.block.calls import Scores
from accuracy.kernel.block.running_state import RunningState
from accuracy.runtime.quantise import by_heads
from accuracy.runtime.sharding import token_map
from accuracy.variant.join import Accumulator, Running
from accuracy.world.base import Results, Tensors, World

PUBLISHED = Precision()
WROTE = "the variant wrote to its inputs"


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

    @property
    def scale(self) -> float:
        """The softmax scale."""
        return self.scores.scale

    @property
    def causal(self) -> bool:
        """Whether a query sees keys up to its own position only."""
        return self.visibility.causal

    def place(self, place: str) -> torch.dtype:
        """The dtype that the precision policy sets for a rounding place."""
        return getattr(torch, self.precision.dtype(place, str(self.dtype).removeprefix("torch.")))

    def sent(self, place: str, x: Tensor) -> Tensor:
        """x (B, S, heads, D) as it travels on a wire: in the place's dtype, or what 8 bits and their scales leave of
        it."""
        word = self.precision.dtype(place, str(self.dtype).removeprefix("torch."))
        return by_heads(x, FORMATS[INPUT_FORMATS[word]]) if word in INPUT_FORMATS else x.to(self.place(place))

    def meeting(self, source: int | None, length: int) -> "Rank":
        """The rank while it has the keys of rank `source`, or (None) of all ranks, each with `length` tokens: it knows
        which weights are dropped."""
        dropout = self.scores.dropout
        if dropout is None:
            return self
        count = shardings.total(self.sharding, length, self.world.size)
        tokens = [each[each < count] for each in token_map(self.sharding, count, self.world.size)]
        keys = torch.arange(count) if source is None else tokens[source]
        return replace(self, scores=replace(self.scores, dropout=dropout.at(tokens[self.world.rank], keys)))

    def widest(self, x: Tensor) -> Tensor:
        """A rank's tensor (B, n_r, heads, D) with zeros behind its tokens where another rank holds more: buffers that
        travel have one size."""
        missing = shardings.most(self.sharding, x.shape[1]) - x.shape[1]
        return F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x

    def of_heads(self, first: int) -> "Rank":
        """The rank while it computes query heads from `first` on."""
        dropout = self.scores.dropout
        return self if dropout is None else replace(self, scores=replace(self.scores, dropout=dropout.of_heads(first)))

    @property
    def lse_dtype(self) -> torch.dtype:
        """In which lse is stored: float32, float64 in a float64 case."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def running(self, q: Tensor) -> Running | RunningState:
        """An empty running partial for the queries q (B, S, H, D); the kernel's own state where it carries one."""
        carry = getattr(self.kernel, "carry", None)
        if carry is not None:
            return RunningState(carry, q)
        return Running.empty(self.unfilled(q), self.place("out_accumulator"), self.place("lse"), self.precision.merge)

    def unfilled(self, q: Tensor) -> Tensor:
        """Memory for the out (B, S, H, Dv) of the queries q (B, S, H, D)."""
        return q.new_empty(*q.shape[:-1], self.value_dim or q.shape[-1])

    def accumulator(self, name: str, like: Tensor) -> Accumulator:
        """An empty sum of the gradient `name` (dq, dk, dv), shaped `like` (B, S, heads, D)."""
        return Accumulator(like, self.place("dq_accumulator" if name == "dq" else "dkv_accumulator"))

    def join(self, running: Running | RunningState, block: Block, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Bring a block into the running partial: by going on in the kernel, or by merging what the kernel returns."""
        if isinstance(running, RunningState):
            running.add(block, k[:, block.key], v[:, block.key], self.scale)
        else:
            running.add(block, *self.attend(block, q, k, v))

    async def bring(self, running: Running | RunningState, block: Block, q: Tensor, k: Tensor, v: Tensor) -> None:
        """As `join`, but the ranks of a simulated world wait for each other, so that their kernel calls may be one."""
        self.join(running, block, q, k, v)

    async def gradients(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """As `differentiate`, but the ranks of a simulated world wait for each other as in `bring`."""
        return self.differentiate(block, dout, q, k, v, out, lse)

    async def meet(self) -> None:
        """Before a rank reads its sums: the ranks of a simulated world wait, so that their additions may be one."""

    def attend(self, block: Block, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The kernel's partial of one block: out (B, S', H, D) and lse (B, H, S')."""
        return calls.forward(self.kernel, self.scores, block, q, k, v, self.place("partial"))

    def differentiate(
        self, block: Block, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> Tensors:
        """The kernel's dq of the block's rows and dk, dv of its keys, for out and lse over all keys."""
        dtype = self.place("gradient_partial")
        return calls.backward(self.kernel, self.scores, block, dout, q, k, v, out, lse, dtype)

    def blocks_between(self, source: int, length: int) -> list[Block]:
        """The blocks in which this rank's queries see the keys of rank `source`, each with `length` tokens, in local
        positions. Not for striped shards, which have no runs of consecutive tokens."""
        return [*_blocks_between(self.visibility, self.sharding, self.world.rank, source, length, self.world.size)]

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """out (B, Sq, H, D) and lse (B, H, Sq) of all keys (B, S, Hk, D): nothing is merged."""
        whole = self._of_the_whole(q, k)
        return calls.forward_rows(lambda block: whole.attend(block, q, k, v), self._whole(q, k), q, k)

    def differentiate_rows(self, dout: Tensor, q: Tensor, k: Tensor, *others: Tensor) -> Tensors:
        """dq (B, Sq, H, D), dk, dv (B, S, Hk, D); others: v, and out and lse of all keys."""
        whole = self._of_the_whole(q, k)
        return calls.backward_rows(lambda each: whole.differentiate(each, dout, q, k, *others), self._whole(q, k), q, k)

    def _of_the_whole(self, q: Tensor, k: Tensor) -> "Rank":
        """The rank with all queries and keys."""
        return replace(self, scores=self.scores.of_all(q.shape[1], k.shape[1]))

    def _whole(self, q: Tensor, k: Tensor) -> list[Block]:
        """The blocks of all queries and keys; every row is in one."""
        return whole_blocks(self.visibility, self.query_offset, q.shape[1], k.shape[1])


@lru_cache(maxsize=2**14)
def _blocks_between(
    visibility: Visibility, sharding: str, own: int, source: int, length: int, size: int
) -> tuple[Block, ...]:
    mine, theirs = (shardings.segments(sharding, rank, length, size) for rank in (own, source))
    return tuple(
        block.shifted(query - rows.start, key - columns.start)
        for rows, query in mine
        for columns, key in theirs
        for block in visibility.blocks(_run(rows, query), _run(columns, key))
    )


def _run(rows: slice, first: int) -> tuple[int, int]:
    """The positions of local rows that begin at position `first`."""
    return first, first + rows.stop - rows.start


@dataclass(frozen=True)
class Schedule:
    """How each rank computes attention, and what it can do; a subclass has `forward` and `backward`, of one rank.

    shardings: those that it understands; features: of `Problem.features`, the masks and shapes that it knows beyond
    causal and full ones of equal lengths; precision: its published policy; forward_places, backward_places: the
    policy's places that it has; gradients: whether it has a backward; one_device: whether it runs on one rank only;
    kernel: the only one that it runs on, if so; any_lse_dtype: whether lse may come in another dtype than ours, whose
    precision is then all that it can have; traced: whether what a rank joins is of all its heads, which a trace
    compares; merges: whether it does more than return what the kernel does; low_wires: whether its wires may have 8
    bits; options: the frozen dataclass of its knobs, if it has any.
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
    options: Callable[..., Any] | None = None

    def forward(self, rank: Rank, q: Tensor, k: Tensor, v: Tensor) -> Awaitable[Results | tuple[Any, ...]]:
        """Shards of q (B, S/W, H, D), k, v (B, S/W, Hk, D) -> out (B, S/W, H, D), lse (B, H, S/W), and whatever else
        its backward is to be given."""
        raise NotImplementedError

    def backward(
        self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *forwarded: Any
    ) -> Awaitable[Results]:
        """Shards, and what the forward gave -> dq (B, S/W, H, D), dk, dv (B, S/W, Hk, D)."""
        raise NotImplementedError

    def unsupported(self, case: Case) -> str | None:
        """Why it cannot run a case, or None."""
        if self.one_device and case.world_size > 1:
            return f"{case.variant.name} runs on one device: use world_size=1, not {case.world_size}"
        return None

    def knows(self, case: Case) -> tuple[str, ...]:
        """The features of a problem that it knows in a case."""
        return self.features

    def missing(self, tensor: str) -> str:
        """Why a tensor of its has no numbers."""
        return f"the variant returns no {tensor}"

    def code(self, case: Case) -> str:
        """What decides the numbers beside this package and the schedule's own file, in a word."""
        return ""


@dataclass(frozen=True)
class ForwardOnly(Schedule):
    """A schedule for inference."""

    gradients: bool = False

    async def backward(self, rank: Rank, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *forwarded: Any) -> Results:
        """Nothing."""
        return None, None, None


def schedule_of(part: Part) -> Schedule:
    """The schedule in a part's file."""
    schedule: Schedule = plugins.load(part.source).SCHEDULE
    return schedule
