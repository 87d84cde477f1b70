"""All ranks of a schedule side by side in a batch, every bit the same; None where only the ranks themselves can."""

from collections.abc import Callable, Sequence

from accuracy.simulate.batched import llama3, ring
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.llama3 import Llama3
from accuracy.variant.ring import Ring
from accuracy.world.base import Results, Tensors

Batched = Callable[[Rank, Sequence[Tensors]], list[Results]]
"""A rank, any of them, for what all share, and the shards of all ranks -> the results of each."""


def forward_of(schedule: Schedule) -> Batched | None:
    """Of a `Ring` or a `Llama3` whose forward is not overridden."""
    if isinstance(schedule, Ring) and _is_plain(schedule, "forward", "source", "hop"):
        return lambda rank, shards: ring.forward(rank, schedule.blocks, shards)
    if isinstance(schedule, Llama3) and type(schedule).forward is Llama3.forward:
        return llama3.forward
    return None


def backward_of(schedule: Schedule) -> Batched | None:
    """Of a `Ring` or a `Llama3` whose backward is not overridden."""
    if isinstance(schedule, Ring) and _is_plain(schedule, "backward", "source", "hop", "end_step"):
        return lambda rank, shards: ring.backward(rank, schedule.blocks, shards)
    if isinstance(schedule, Llama3) and type(schedule).backward is Llama3.backward:
        return llama3.backward
    return None


def _is_plain(schedule: Ring, *methods: str) -> bool:
    return all(getattr(type(schedule), name) is getattr(Ring, name) for name in methods)
