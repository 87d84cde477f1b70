"""All ranks in one process on one device: deterministic, any world size.

Each rank is a coroutine. The ranks take turns in rank order; a turn ends where the rank awaits something that has not
been sent. Tensors are handed over by reference: the ownership rules of `accuracy.world.base` make that safe, and a
write to a tensor on its way is caught by its version counter.
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accuracy.world.base import Program, Results, Tensors


class Deadlock(RuntimeError):
    """Every rank that has not finished waits for a message that nobody sends."""


class RankFailed(RuntimeError):
    """A rank raised; the cause is chained."""


@dataclass
class Mail:
    """Messages on their way, by (sender, receiver, number of the operation); every rank calls the same operations."""

    messages: dict[tuple[int, int, int], tuple[Tensors, tuple[int, ...]]] = field(default_factory=dict)
    events: int = 0

    def send(self, sender: int, receiver: int, number: int, tensors: Tensors) -> None:
        """Put a message on its way."""
        self.events += 1
        self.messages[sender, receiver, number] = tensors, tuple(tensor._version for tensor in tensors)

    def take(self, sender: int, receiver: int, number: int) -> Tensors | None:
        """The message, or None if it has not been sent."""
        message = self.messages.pop((sender, receiver, number), None)
        if message is None:
            return None
        self.events += 1
        tensors, versions = message
        if any(tensor._version != version for tensor, version in zip(tensors, versions, strict=True)):
            raise RuntimeError(f"rank {sender} wrote to a tensor on its way to rank {receiver}")
        return tensors


@dataclass(frozen=True)
class Transfer:
    """What a rank awaits: one message from each of `senders`, in that order, then joined."""

    mail: Mail
    receiver: int
    senders: Sequence[int]
    number: int
    join: Callable[[list[Tensors]], Tensors]

    def __await__(self) -> Generator[str, None, Tensors]:
        """Let the other ranks run until every message is here."""
        received = []
        for sender in self.senders:
            while (tensors := self.mail.take(sender, self.receiver, self.number)) is None:
                yield f"rank {self.receiver} waits for operation {self.number} of rank {sender}"
            received.append(tensors)
        return self.join(received)


@dataclass
class SimulatedWorld:
    """One rank's view; see `accuracy.world.base.World`."""

    rank: int
    size: int
    mail: Mail
    number: int = 0

    def ring_shift(self, tensors: Sequence[Tensor], distance: int = 1) -> Transfer:
        """See `World.ring_shift`."""
        number = self._next()
        self.mail.send(self.rank, (self.rank + distance) % self.size, number, tuple(tensors))
        return Transfer(self.mail, self.rank, [(self.rank - distance) % self.size], number, _only)

    def all_gather(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_gather`."""
        number = self._next()
        for receiver in range(self.size):
            self.mail.send(self.rank, receiver, number, tuple(tensors))
        return Transfer(self.mail, self.rank, range(self.size), number, _stack)

    def all_to_all(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_to_all`."""
        number = self._next()
        self._scatter(tensors, number)
        return Transfer(self.mail, self.rank, range(self.size), number, _stack)

    def reduce_scatter(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.reduce_scatter`."""
        number = self._next()
        self._scatter(tensors, number)
        ring = [(self.rank + 1 + hop) % self.size for hop in range(self.size)]
        return Transfer(self.mail, self.rank, ring, number, _sum)

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _scatter(self, tensors: Sequence[Tensor], number: int) -> None:
        for receiver in range(self.size):
            self.mail.send(self.rank, receiver, number, tuple(tensor[receiver] for tensor in tensors))


def _only(received: list[Tensors]) -> Tensors:
    return received[0]


def _stack(received: list[Tensors]) -> Tensors:
    return tuple(torch.stack(same) for same in zip(*received, strict=True))


def _sum(received: list[Tensors]) -> Tensors:
    total = received[0]
    for tensors in received[1:]:
        total = tuple(a + b for a, b in zip(total, tensors, strict=True))
    return total


def run(program: Program, size: int) -> list[Results]:
    """Run `program` as every rank of a world of `size`; the results in rank order.

    Raises RankFailed when a rank raises, Deadlock when none can go on.
    """
    mail = Mail()
    ranks = [program(SimulatedWorld(rank, size, mail)) for rank in range(size)]
    results: dict[int, Results] = {}
    try:
        while len(results) < size:
            before = mail.events, len(results)
            waiting = [_turn(rank, ranks[rank], results) for rank in range(size) if rank not in results]
            if (mail.events, len(results)) == before:
                raise Deadlock("; ".join(str(reason) for reason in waiting[:4]))
    finally:
        for coroutine in ranks:
            coroutine.close()
    return [results[rank] for rank in range(size)]


def _turn(rank: int, coroutine: Coroutine[Any, Any, Results], results: dict[int, Results]) -> str | None:
    """Run a rank until it waits (what for is returned) or finishes (its result is kept)."""
    try:
        return str(coroutine.send(None))
    except StopIteration as finished:
        results[rank] = finished.value
    except Exception as error:
        raise RankFailed(f"rank {rank}: {type(error).__name__}: {error}") from error
    return None
