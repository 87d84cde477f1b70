"""The contract between a schedule and its world.

A schedule is a coroutine of one rank: it starts a transfer, computes while the transfer runs, and awaits it: in the
simulated world that lets the other ranks of the same process run, in a world of real processes it waits for the wire.

Ownership: a tensor given to the world must not be written until the transfer is awaited, and if it is an accumulator
it belongs to the receiver from then on. A received tensor that was an input of another rank (k, v), or that was
gathered, is read only: in the simulated world others read the same.
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol

from torch import Tensor

Tensors = tuple[Tensor, ...]
Results = tuple[Tensor | None, ...]  # out, lse, dq, dk, dv of a rank; lse None where the variant gives none away
Program = Callable[["World"], Coroutine[Any, Any, Results]]


class Transfer(Protocol):
    """Under way. `received` are its receive buffers: nothing is in them before the transfer has been awaited."""

    @property
    def received(self) -> Tensors:
        """The receive buffers; of a reduce-scatter, those that its backend sums."""

    def __await__(self) -> Generator[Any, None, Tensors]:
        """Wait for it."""


class World(Protocol):
    """One rank's view of all ranks. Every operation starts at once and returns something to await."""

    rank: int  # 0 to size - 1
    size: int

    def exchange(self, tensors: Sequence[Tensor], to: int, source: int) -> Transfer:
        """Send tensors to one rank, receive those of another. All ranks call it together, and each is sent to once."""

    def all_gather(self, tensors: Sequence[Tensor]) -> Transfer:
        """Each tensor of every rank, stacked in rank order: (...) -> (W, ...)."""

    def all_to_all(self, tensors: Sequence[Tensor]) -> Transfer:
        """Slice j of each tensor goes to rank j; the slices received come in rank order: (W, ...) -> (W, ...)."""

    def reduce_scatter(self, tensors: Sequence[Tensor]) -> Transfer:
        """Slice j of each tensor, summed over the ranks, goes to rank j: (W, ...) -> (...). Summed as by NCCL's ring
        algorithm (a tree or a switch would round otherwise): rank j+1's slice first, then j+2's, ..., j's own last,
        each partial sum rounded to the tensors' dtype."""
