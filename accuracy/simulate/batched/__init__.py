"""All ranks of a schedule side by side in a batch, every bit the same; None where only the ranks themselves can."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from accuracy.simulate.batched import llama3, ring
from accuracy.variant.base import Rank, Schedule
from accuracy.variant.llama3 import Llama3
from accuracy.variant.ring import Ring
from accuracy.world.base import Results, Tensors

Batched = Callable[[Rank, Sequence[Tensors]], list[Results]]
"""A rank, any of them, for what all share, and the shards of all ranks -> the results of each."""


def batched_of(schedule: Schedule, way: str) -> Batched | None:
    """Return the forward or backward of a `Ring` or a `Llama3` that overrides nothing of it. way: which of them."""
    kinds: Any = (Ring, ring, (way, "source", "hop", "end_step")), (Llama3, llama3, (way,))
    for kind, module, methods in kinds:
        if isinstance(schedule, kind) and all(getattr(type(schedule), name) is getattr(kind, name) for name in methods):
            return partial(getattr(module, way), schedule)
    return None
