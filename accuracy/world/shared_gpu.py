"""A backend of torch.distributed with which many processes share one GPU, which NCCL refuses.

Importing this module registers it: `dist.init_process_group("shared_gpu")`. It carries CUDA and CPU tensors, of one
kind in a transfer. Bytes travel over gloo, or, where they are many, are read out of the sender's memory on the GPU
(`accuracy.world.staged`), so that moving data is exact in every dtype. The receiving rank adds, on the tensors' own
device, in the order of NCCL's ring (`accuracy.world.sums`).

Every operation starts at once and ends in `wait()`, which writes to the outputs on the stream that is current then, as
NCCL makes that stream wait. What has been given to `send` must not change before that: over NCCL either bytes may be
sent, here `wait()` raises. A receive that nobody waits for is never written.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accuracy.world import staged, sums
from accuracy.world.staged import Work

NAME = "shared_gpu"
COLLECTIVE, SERIALS = 2**30, 2**20
"""Tags of messages that belong to collectives begin at the first number, and repeat after so many."""


_Group: Any = dist.ProcessGroup  # whose stubs name further forms of every method


class SharedGpuGroup(_Group):
    """A group of processes, whatever device their tensors are on; methods as torch.distributed calls them."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._rank, self._size, self._serial, self._name = rank, size, 0, ""
        self._to_itself: dict[int, list[tuple[list[Tensor], list[torch.Event]]]] = {}
        self._under_way: set[Work] = set()  # gloo forgets a message whose handle is gone
        self._opened = size > 1 and staged.opens_others(self.gloo, rank, size)

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def name(self) -> str:
        """Return the backend's name."""
        return NAME

    getBackendName = name  # what torch's C++ code asks for

    def _set_group_name(self, name: str) -> None:
        self._name = name  # torch asks for it after it has forgotten the group, too

    @property
    def group_name(self) -> str:
        """Return the name under which functional collectives find the group."""
        return self._name

    pg_name = group_name

    def send(self, tensors: Sequence[Tensor], to: int, tag: int = 0) -> Work:
        """Send tensors to a rank, this one included. Its `wait` raises RuntimeError where they were written to."""
        sent = staged.copies(tensors, self._opened)
        if to == self._rank:
            self._to_itself.setdefault(tag, []).append((sent, staged.events(tensors)))
            return self._all([], [])

        works = [self.gloo.send([staged.on_wire(x)], to, tag) for x in sent if len(x)]

        def finish() -> None:
            if not all(map(torch.equal, staged.copies(tensors, self._opened), sent)):
                raise RuntimeError(f"rank {self._rank} wrote to a tensor on its way, before it waited for its send")
            _wait(works)

        return self._all([finish], [], of=tensors)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int = 0) -> Work:
        """Receive what a rank has sent, in the order in which it was sent."""
        received = staged.room_for(tensors, self._opened)
        if source == self._rank:
            return self._all([lambda: self._take_own(tensors, tag)], tensors)
        works = [self.gloo.recv([x], source, tag) for x in received if len(x)]
        return self._all([lambda: _wait(works), lambda: staged.write_each(tensors, received)], tensors)

    def _take_own(self, tensors: Sequence[Tensor], tag: int) -> None:
        sent, begun = self._to_itself[tag].pop(0)
        staged.wait_for(begun)
        staged.write_each(tensors, sent)

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Work:
        """Write every rank's tensor into a list of tensors, one a rank, which may be of unequal sizes."""
        return self._all([self._gather(each, mine) for each, mine in zip(outputs, inputs, strict=True)], outputs)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work:
        """Write every rank's tensor into one, behind each other."""
        return self.all_gather_single_coalesced([output], [given])

    def all_gather_single_coalesced(self, outputs: Sequence[Tensor], given: Sequence[Tensor], opts: Any = None) -> Work:
        """Write, for each tensor given, those of every rank into one output, behind each other."""
        pairs = zip(outputs, given, strict=True)
        return self._all([self._gather(self._cut(output), mine) for output, mine in pairs], outputs)

    def reduce_scatter(self, outputs: Sequence[Tensor], given: Sequence[Sequence[Tensor]], opts: Any = None) -> Work:
        """Give rank j the sum of all ranks' j-th tensors."""
        pairs = zip(outputs, given, strict=True)
        return self._all([self._scatter_sum(output, each, opts) for output, each in pairs], outputs)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Work:
        """Give rank j the sum of all ranks' j-th slices."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], given: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Give rank j, for each tensor given, the sum of all ranks' j-th slices of it."""
        pairs = zip(outputs, given, strict=True)
        return self._all([self._scatter_sum(output, self._cut(mine), opts) for output, mine in pairs], outputs)

    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced  # of torch 2.11
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """Put all ranks' sum in the place of each tensor."""
        return self._all([self._sum_of_all(x, opts) for x in tensors], tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        """Put all ranks' sum in the place of the root's tensors."""
        operation, root = sums.operation_of(opts), opts.rootRank
        finishes = [
            self._to_root(x, [x] * self._size, root, partial(self._write_sum, x, root, operation)) for x in tensors
        ]
        return self._all(finishes, tensors)

    def alltoall(self, outputs: Sequence[Tensor], given: Sequence[Tensor], opts: Any = None) -> Work:
        """Send the j-th tensor to rank j; receive one from each."""
        gives, write = staged.copies(given, self._opened), partial(staged.write_each, outputs)
        return self._all([self._exchange(gives, outputs, write)], outputs)

    def all_to_all_single(
        self, output: Tensor, given: Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> Work:
        """As `alltoall` with rows of one tensor each; splits: how many for each rank, else as many."""
        return self.alltoall(self._rows(output, output_splits), self._rows(given, input_splits))

    alltoall_base = all_to_all_single

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        """Put the root's tensors in the place of all ranks'."""
        return self._all([self._from_root(x, [x] * self._size, opts.rootRank) for x in tensors], tensors)

    def scatter(self, outputs: Sequence[Tensor], given: Sequence[Sequence[Tensor]], opts: Any) -> Work:
        """Give rank j the root's j-th tensor."""
        pairs = zip(outputs, given or [[]] * len(outputs), strict=True)
        return self._all([self._from_root(output, each, opts.rootRank) for output, each in pairs], outputs)

    def gather(self, outputs: Sequence[Sequence[Tensor]], given: Sequence[Tensor], opts: Any) -> Work:
        """Give the root every rank's tensor."""
        pairs, root = zip(outputs or [[]] * len(given), given, strict=True), opts.rootRank
        finishes = [self._to_root(mine, each, root, partial(staged.write_each, each)) for each, mine in pairs]
        return self._all(finishes, outputs)

    def barrier(self, opts: Any = None) -> Work:
        """Wait until all ranks have come."""
        word = torch.zeros(1, dtype=torch.uint8)
        return self._all([self._exchange([word] * self._size, [word] * self._size, _nothing)], [])

    def _gather(self, outputs: Sequence[Tensor], mine: Tensor) -> Callable[[], object]:
        gives = staged.copies([mine], self._opened) * self._size
        return self._exchange(gives, outputs, partial(staged.write_each, outputs))

    def _scatter_sum(self, output: Tensor, given: Sequence[Tensor], opts: Any) -> Callable[[], object]:
        write = partial(self._write_sum, output, self._rank, sums.operation_of(opts))
        return self._exchange(staged.copies(given, self._opened), [output] * self._size, write)

    def _sum_of_all(self, x: Tensor, opts: Any) -> Callable[[], object]:
        operation = sums.operation_of(opts)

        def write(received: Sequence[Tensor]) -> None:
            parts = [each.flatten() for each in staged.typed_each(received, x)]
            length = max(1, -(-x.numel() // self._size))
            pieces = zip(*(part.split(length) for part in parts), strict=True)
            summed = [sums.total(piece, owner, operation) for owner, piece in enumerate(pieces)]
            x.data.copy_(torch.cat(summed).view(x.shape))

        return self._exchange(staged.copies([x], self._opened) * self._size, [x] * self._size, write)

    def _write_sum(self, output: Tensor, owner: int, operation: str, received: Sequence[Tensor]) -> None:
        output.data.copy_(sums.total(staged.typed_each(received, output), owner, operation))

    def _to_root(
        self, mine: Tensor, takes: Sequence[Tensor], root: int, write: Callable[[Sequence[Tensor]], object]
    ) -> Callable[[], object]:
        nothing = mine.new_empty(0)
        gives = staged.copies([mine if rank == root else nothing for rank in range(self._size)], self._opened)
        if self._rank != root:
            takes, write = [nothing] * self._size, _nothing
        return self._exchange(gives, takes, write)

    def _from_root(self, output: Tensor, given: Sequence[Tensor], root: int) -> Callable[[], object]:
        nothing = output.new_empty(0)
        gives = staged.copies(given if self._rank == root else [nothing] * self._size, self._opened)
        takes = [output if rank == root else nothing for rank in range(self._size)]
        return self._exchange(gives, takes, lambda received: staged.write(output, received[root]))

    def _exchange(
        self, gives: Sequence[Tensor], takes: Sequence[Tensor], write: Callable[[Sequence[Tensor]], object]
    ) -> Callable[[], object]:
        """Start to send bytes to every rank and to receive as many from each as its tensor of `takes` has. Return what
        waits for them and hands them to `write`, by rank."""
        self._serial += 1
        tag = COLLECTIVE + self._serial % SERIALS
        received = staged.room_for(takes, self._opened)
        received[self._rank] = gives[self._rank]
        works = []
        for step in range(1, self._size):
            to, source = (self._rank + step) % self._size, (self._rank - step) % self._size
            if len(gives[to]):
                works.append(self.gloo.send([staged.on_wire(gives[to])], to, tag))
            if len(received[source]):
                works.append(self.gloo.recv([received[source]], source, tag))

        def finish() -> None:
            _wait(works)
            write(received)

        return finish

    def _all(self, finishes: Sequence[Callable[[], object]], outputs: Any, of: Sequence[Tensor] = ()) -> Work:
        begun = staged.events([*outputs, *of])

        def finish() -> None:
            staged.wait_for(begun)  # they were under way when this began, perhaps on another stream
            with torch.no_grad():
                for each in finishes:
                    each()
            self._under_way.discard(work)

        work = Work(finish, outputs)
        self._under_way.add(work)
        return work

    def _cut(self, x: Tensor) -> list[Tensor]:
        """Return a tensor cut into as many equal parts as there are ranks, each flat."""
        staged.check(x)
        return list(x.view(self._size, -1).unbind()) if x.numel() else [x.flatten()] * self._size

    def _rows(self, x: Tensor, splits: Sequence[int]) -> list[Tensor]:
        return list(x.split(list(splits) or [len(x) // self._size] * self._size))


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()


def _nothing(received: Sequence[Tensor]) -> None:
    """A rank that is given nothing writes nothing."""


dist.Backend.register_backend(NAME, SharedGpuGroup, devices=["cpu", "cuda"])
