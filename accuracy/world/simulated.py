"""All ranks in one process on one device: deterministic, any world size.

Each rank is a coroutine. The ranks take turns in rank order; a turn ends where the rank awaits something that has not
been sent. Tensors are handed over by reference: the ownership rules of `accuracy.world.base` make that safe, and a
write to a tensor on its way is caught by its version counter. What is gathered is stacked once, for all ranks to read.
Rings need no coroutines here: `accuracy.simulate.batched.rings` runs all of their ranks as one.
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


Sent = tuple[Tensors, tuple[int, ...]]  # tensors on their way, and their versions when they were sent


@dataclass
class Collective:
    """An operation of all ranks at once: what each rank gives, and what each gets once all have given."""

    given: dict[int, Sent] = field(default_factory=dict)
    results: Sequence[Tensors] = ()
    taken: int = 0

    def checked(self, rank: int) -> Tensors:
        """What a rank gave. Raises RuntimeError where it has written to it since."""
        return _unwritten(self.given[rank], f"rank {rank} wrote to a tensor on its way")


@dataclass
class Mail:
    """Messages on their way, by (sender, receiver, number of the operation), and operations of all ranks, by number;
    every rank calls the same operations."""

    messages: dict[tuple[int, int, int], Sent] = field(default_factory=dict)
    collectives: dict[int, Collective] = field(default_factory=dict)
    events: int = 0

    def send(self, sender: int, receiver: int, number: int, tensors: Tensors) -> None:
        """Put a message on its way."""
        self.events += 1
        self.messages[sender, receiver, number] = _sent(tensors)

    def take(self, sender: int, receiver: int, number: int) -> Tensors | None:
        """The message, or None if it has not been sent."""
        message = self.messages.pop((sender, receiver, number), None)
        if message is None:
            return None
        self.events += 1
        return _unwritten(message, f"rank {sender} wrote to a tensor on its way to rank {receiver}")

    def give(self, rank: int, number: int, tensors: Tensors) -> None:
        """A rank's part of an operation of all."""
        self.events += 1
        self.collectives.setdefault(number, Collective()).given[rank] = _sent(tensors)

    def get(self, rank: int, number: int, join: Callable[[list[Tensors]], Sequence[Tensors]]) -> Tensors:
        """What a rank gets once all have given. The first makes it for all: join turns their tensors into results."""
        self.events += 1
        operation = self.collectives[number]
        if not operation.taken:
            operation.results = join([operation.checked(sender) for sender in range(len(operation.given))])
        operation.checked(rank)
        operation.taken += 1
        if operation.taken == len(operation.given):
            del self.collectives[number]
        return operation.results[rank]


def _sent(tensors: Tensors) -> Sent:
    return tensors, tuple(tensor._version for tensor in tensors)


def _unwritten(sent: Sent, otherwise: str) -> Tensors:
    """The tensors as they were sent. Raises RuntimeError with what to say otherwise."""
    tensors, versions = sent
    if any(tensor._version != version for tensor, version in zip(tensors, versions, strict=True)):
        raise RuntimeError(otherwise)
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


@dataclass(frozen=True)
class Joint:
    """What a rank awaits of an operation of all ranks."""

    mail: Mail
    rank: int
    size: int
    number: int
    join: Callable[[list[Tensors]], Sequence[Tensors]]

    def __await__(self) -> Generator[str, None, Tensors]:
        """Let the other ranks run until each has given its part."""
        given = self.mail.collectives[self.number].given
        while len(given) < self.size:
            missing = next(rank for rank in range(self.size) if rank not in given)
            yield f"rank {self.rank} waits for operation {self.number} of rank {missing}"
        return self.mail.get(self.rank, self.number, self.join)


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

    def all_gather(self, tensors: Sequence[Tensor]) -> Joint:
        """See `World.all_gather`."""
        return self._jointly(tensors, _gathered)

    def all_to_all(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_to_all`."""
        number = self._next()
        for receiver in range(self.size):
            self.mail.send(self.rank, receiver, number, tuple(tensor[receiver] for tensor in tensors))
        return Transfer(self.mail, self.rank, range(self.size), number, _stack)

    def reduce_scatter(self, tensors: Sequence[Tensor]) -> Joint:
        """See `World.reduce_scatter`."""
        return self._jointly(tensors, _sum)

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _jointly(self, tensors: Sequence[Tensor], join: Callable[[list[Tensors]], Sequence[Tensors]]) -> Joint:
        number = self._next()
        self.mail.give(self.rank, number, tuple(tensors))
        return Joint(self.mail, self.rank, self.size, number, join)


def _only(received: list[Tensors]) -> Tensors:
    return received[0]


def _stack(received: list[Tensors]) -> Tensors:
    return tuple(torch.stack(same) for same in zip(*received, strict=True))


def _gathered(given: list[Tensors]) -> list[Tensors]:
    """One stack, the same for each rank."""
    return [_stack(given)] * len(given)


def _sum(given: list[Tensors]) -> list[Tensors]:
    """Each rank's sums; every addition is one of all ranks' slices, at the same hop of their rings."""
    size = len(given)
    totals = []
    for same in zip(*given, strict=True):
        slices = [tensor.unbind() for tensor in same]
        total = torch.stack([slices[(rank + 1) % size][rank] for rank in range(size)])
        for hop in range(1, size):
            total += torch.stack([slices[(rank + 1 + hop) % size][rank] for rank in range(size)])
        totals.append([part.clone() for part in total.unbind()])
    return list(zip(*totals, strict=True))


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
