"""All ranks in one process on one device: deterministic, any world size.

Each rank is a coroutine. The ranks take turns in rank order; a turn ends where the rank awaits something that has not
been sent. Tensors are handed over by reference: the ownership rules of `accuracy.world.base` make that safe, and a
write to a tensor on its way is caught by its version counter. What is gathered is stacked once, for all ranks to read.
A schedule that asks for a transfer's receive buffers before it waits finds old data there, as on a wire: what the rank
has sent, or, in a poisoned world, NaN.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from accuracy.world.base import Program, Results, Tensors


class Deadlock(RuntimeError):
    """Every rank that has not finished waits for a message that nobody sends."""


class RankFailed(RuntimeError):
    """A rank raised; the cause is chained."""


@dataclass
class Mail:
    """By number of the operation, which is the same on every rank: what each rank sent, with the versions of its
    tensors then, and what each rank gets from an operation of all. poison: whether receive buffers hold NaN until what
    they are for has been waited for."""

    poison: bool = False
    sent: dict[tuple[int, int], tuple[Tensors, list[int]]] = field(default_factory=dict)
    joined: dict[int, dict[int, Tensors]] = field(default_factory=dict)

    def unwritten(self, number: int, sender: int) -> Tensors:
        """What a rank sent. Raises RuntimeError where the rank has written to it since."""
        tensors, versions = self.sent[number, sender]
        if [tensor._version for tensor in tensors] != versions:
            raise RuntimeError(f"rank {sender} wrote to a tensor on its way")
        return tensors


@dataclass
class Transfer:
    """On its way. arrive: waits for it; sent: what the rank has sent; count: how many times as much it receives."""

    arrive: Generator[str, None, Tensors]
    sent: Tensors
    poison: bool
    count: int | None = None
    buffers: Tensors | None = None

    @property
    def received(self) -> Tensors:
        """The receive buffers."""
        if self.buffers is None:
            stale = (x if self.count is None else x.expand(self.count, *x.shape) for x in self.sent)
            self.buffers = tuple(torch.full_like(x, torch.nan) if self.poison else x.clone() for x in stale)
        return self.buffers

    def __await__(self) -> Generator[str, None, Tensors]:
        """The tensors, in the receive buffers where somebody has asked for these."""
        tensors = yield from self.arrive
        if self.buffers is None:
            return tensors
        for buffer, x in zip(self.buffers, tensors, strict=True):
            buffer.copy_(x)
        return self.buffers


@dataclass
class SimulatedWorld:
    """One rank's view; see `accuracy.world.base.World`."""

    rank: int
    size: int
    mail: Mail
    number: int = 0

    def exchange(self, tensors: Sequence[Tensor], to: int, source: int) -> Transfer:
        """See `World.exchange`."""
        return self._start(tensors, self._received(self.number + 1, source), tensors)

    def all_gather(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_gather`."""
        return self._start(tensors, self._joined(self.number + 1, _gathered), tensors, self.size)

    def all_to_all(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_to_all`."""
        return self._start(tensors, self._joined(self.number + 1, _transposed), tensors)

    def reduce_scatter(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.reduce_scatter`."""
        return self._start(tensors, self._joined(self.number + 1, _sum), [x[0] for x in tensors])

    def _start(
        self, sent: Sequence[Tensor], arrive: Generator[str, None, Tensors], stale: Sequence[Tensor],
        count: int | None = None,
    ) -> Transfer:  # fmt: skip
        """Send tensors. stale: what is in the receive buffers, once or `count` times, until they are waited for."""
        self.number += 1
        self.mail.sent[self.number, self.rank] = tuple(sent), [tensor._version for tensor in sent]
        return Transfer(arrive, tuple(stale), self.mail.poison, count)

    def _received(self, number: int, sender: int) -> Generator[str, None, Tensors]:
        while (number, sender) not in self.mail.sent:
            yield f"rank {self.rank} waits for operation {number} of rank {sender}"
        received = self.mail.unwritten(number, sender)
        del self.mail.sent[number, sender]
        return received

    def _joined(self, number: int, join: Callable[[list[Tensors]], list[Tensors]]) -> Generator[str, None, Tensors]:
        """The first rank that finds all parts joins them for all ranks."""
        mail = self.mail
        for sender in range(self.size):
            while number not in mail.joined and (number, sender) not in mail.sent:
                yield f"rank {self.rank} waits for operation {number} of rank {sender}"
        if number not in mail.joined:
            parts = [mail.unwritten(number, sender) for sender in range(self.size)]
            mail.joined[number] = dict(enumerate(join(parts)))
        mail.unwritten(number, self.rank)
        del mail.sent[number, self.rank]
        return mail.joined[number].pop(self.rank)


def _stack(given: Sequence[Tensors]) -> Tensors:
    return tuple(torch.stack(same) for same in zip(*given, strict=True))


def _gathered(given: list[Tensors]) -> list[Tensors]:
    return [_stack(given)] * len(given)


def _transposed(given: list[Tensors]) -> list[Tensors]:
    return [_stack([tuple(x[rank] for x in tensors) for tensors in given]) for rank in range(len(given))]


def _sum(given: list[Tensors]) -> list[Tensors]:
    """Each rank's sums; every addition is one of all ranks' slices, at the same hop of their rings."""
    totals = [reduce(Tensor.add_, by_hop(torch.stack(same))) for same in zip(*given, strict=True)]
    return list(zip(*([part.clone() for part in total.unbind()] for total in totals), strict=True))


def by_hop(parts: Tensor) -> Iterator[Tensor]:
    """Of what each rank has for each rank, (W, W, ...): what all ranks, (W, ...), have from the next rank, from the one
    after that, and last from themselves."""
    own = torch.arange(len(parts), device=parts.device)
    return (parts[senders, own] for senders in (own[:, None] + own + 1) % len(parts))


def run(program: Program, size: int, poison: bool = False) -> list[Results]:
    """Run `program` as every rank of a world of `size`; the results in rank order. poison: see `Mail`. Raises
    RankFailed when a rank raises, Deadlock when none can go on."""
    mail = Mail(poison)
    ranks = [program(SimulatedWorld(rank, size, mail)) for rank in range(size)]
    results: dict[int, Results] = {}
    waiting: list[str] = []
    try:
        while len(results) < size:
            before, waiting = waiting, []
            for rank in [each for each in range(size) if each not in results]:
                try:
                    waiting.append(str(ranks[rank].send(None)))
                except StopIteration as finished:
                    results[rank] = finished.value
                except Exception as error:
                    raise RankFailed(f"rank {rank}: {type(error).__name__}: {error}") from error
            if waiting and waiting == before:
                raise Deadlock("; ".join(waiting[:4]))
    finally:
        for each in ranks:
            each.close()
    return [results[rank] for rank in range(size)]
