"""One process a rank over torch.distributed: gloo on CPUs, NCCL on GPUs, `shared_gpu` where several ranks have one.
Summation orders are fixed by this file, not by the backend, so that both worlds agree bit for bit."""

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.world.base import Program, Results, Tensors


@dataclass(frozen=True)
class Transfer:
    """Work under way. sent: kept until the wire is done with it; received: what `join` makes the result of."""

    works: Sequence[dist.Work]
    sent: Tensors
    received: Tensors
    join: Callable[[Tensor], Tensor] = lambda tensor: tensor

    def __await__(self) -> Generator[None, None, Tensors]:
        """Wait for the wire; the rank's own stream goes on where the backend has one."""
        for work in self.works:
            work.wait()
        return tuple(self.join(tensor) for tensor in self.received)
        yield  # never reached: makes this a generator, which awaiting asks for


@dataclass
class ProcessesWorld:
    """One rank's view; see `accuracy.world.base.World`. group: of the ranks 0 to size - 1 of all processes."""

    rank: int
    size: int
    group: dist.ProcessGroup

    def exchange(self, tensors: Sequence[Tensor], to: int, source: int) -> Transfer:
        """See `World.exchange`."""
        sent = tuple(tensor.contiguous() for tensor in tensors)
        if to == self.rank:
            return Transfer((), (), sent)
        received = tuple(torch.empty_like(tensor) for tensor in sent)
        operations = [dist.P2POp(dist.isend, tensor, group=self.group, group_peer=to) for tensor in sent]
        operations += [dist.P2POp(dist.irecv, tensor, group=self.group, group_peer=source) for tensor in received]
        return Transfer(dist.batch_isend_irecv(operations), sent, received)

    def all_gather(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_gather`."""
        sent = tuple(tensor.contiguous() for tensor in tensors)
        received = tuple(tensor.new_empty(self.size, *tensor.shape) for tensor in sent)
        pairs = [(list(whole.unbind()), mine) for whole, mine in zip(received, sent, strict=True)]
        works = [dist.all_gather(parts, mine, group=self.group, async_op=True) for parts, mine in pairs]
        return Transfer(works, sent, received)

    def all_to_all(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.all_to_all`."""
        sent = tuple(tensor.contiguous() for tensor in tensors)
        received = tuple(torch.empty_like(tensor) for tensor in sent)
        pairs = zip(received, sent, strict=True)
        works = [dist.all_to_all_single(theirs, mine, group=self.group, async_op=True) for theirs, mine in pairs]
        return Transfer(works, sent, received)

    def reduce_scatter(self, tensors: Sequence[Tensor]) -> Transfer:
        """See `World.reduce_scatter`: an exchange of slices and a sum in the contract's order. The bytes on the wire
        are those of a ring reduce-scatter; a backend's own may add in any order."""
        senders = [(self.rank + 1 + hop) % self.size for hop in range(self.size)]
        return replace(
            self.all_to_all(tensors), join=lambda slices: reduce(torch.add, [slices[each] for each in senders])
        )


def run_rank(program: Program, world: ProcessesWorld) -> Results:
    """Run a program as one rank of real processes: its awaits block, so it runs through in one go."""
    coroutine = program(world)
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: Results = finished.value
        return result
    finally:
        coroutine.close()
    raise RuntimeError("a schedule waited for something that is no transfer of its world")


LOOPBACK = "GLOO_SOCKET_IFNAME", "lo"
"""gloo opens a socket: on this interface, unless the environment says otherwise."""


@contextmanager
def group_of_one(device: str) -> Iterator[dist.ProcessGroup]:
    """This process alone. Where the caller has a default group, that one stays, and this is a further one; where there
    is none, the default group of the body is this."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" and dist.is_nccl_available() else "gloo"
    if dist.is_initialized():
        with variable(*LOOPBACK):
            mine = dist.new_group([dist.get_rank()], backend=backend, use_local_synchronization=True)
        try:
            yield mine
        finally:
            with suppress(ValueError, AssertionError):  # the function may have ended it
                dist.destroy_process_group(mine)
        return
    hook = sys.excepthook
    with variable(*LOOPBACK):
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    sys.excepthook = hook  # torch would print "[rank0]:" before every line, more often with every group
    try:
        yield dist.group.WORLD  # type: ignore[misc]
    finally:
        with suppress(ValueError, AssertionError):  # the function may have ended it
            dist.destroy_process_group()


@contextmanager
def kept_group_of_one(device: str) -> Iterator[Callable[[], dist.ProcessGroup]]:
    """Yield a function that returns a group of this process alone. It makes the group when it is first called, and
    another one after a user's function has ended that; the end of the body ends them. To make and end a group of NCCL
    takes as long as a small case."""
    made: list[dist.ProcessGroup] = []
    with ExitStack() as ends:

        def group() -> dist.ProcessGroup:
            if not made or not _is_alive(made[-1]):
                made.append(ends.enter_context(group_of_one(device)))
            return made[-1]

        yield group


def _is_alive(group: dist.ProcessGroup) -> bool:
    try:
        dist.get_rank(group)
    except ValueError:  # torch's, of a group that was ended
        return False
    return True


@contextmanager
def default_group(group: dist.ProcessGroup | None) -> Iterator[None]:
    """In the body this is torch.distributed's default group, of which a function asks that takes none; None: as is."""
    before: Any = dist.group.WORLD
    if group is not None:
        dist.group.WORLD = group
    try:
        yield
    finally:
        if group is not None:
            dist.group.WORLD = before if before is None or _is_alive(before) else None


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """In the body the environment has a variable, of this value unless it had one before. No other changes: other
    threads may read it."""
    before = os.environ.get(name)
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
