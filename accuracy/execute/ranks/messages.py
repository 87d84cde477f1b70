"""What ranks tell each other: texts, numbers and tensors, by collectives. Nothing that arrives is unpickled."""

import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

FOREVER = timedelta(days=365)
"""The time limit of a process group; a case has one of its own."""
POLL_SECONDS = 0.002


class Stuck(RuntimeError):
    """Other ranks did not come in time."""


def device_of(group: dist.ProcessGroup) -> str:
    """The device whose tensors a group carries, `cpu` or `cuda`."""
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"


def share(text: str, group: dist.ProcessGroup, patience: float | None = None) -> list[str]:
    """Every rank's text on every rank, in rank order. patience: seconds that the others may take to come (None: as long
    as the group has). Raises Stuck after them, and another RuntimeError where a rank is gone."""
    where, size = device_of(group), dist.get_world_size(group)
    mine = torch.tensor(list(text.encode()), dtype=torch.uint8, device=where)
    lengths = [torch.zeros(1, dtype=torch.int64, device=where) for _ in range(size)]
    work = dist.all_gather(lengths, torch.tensor([len(mine)], device=where), group=group, async_op=True)
    deadline = time.monotonic() + (patience or 0.0)
    while patience is not None and not work.is_completed():
        if time.monotonic() > deadline:
            raise Stuck
        time.sleep(POLL_SECONDS)
    work.wait()
    padded = torch.zeros(int(max(lengths)), dtype=torch.uint8, device=where)
    padded[: len(mine)] = mine
    every = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(every, padded, group=group)
    return [bytes(x[: int(count)].tolist()).decode() for x, count in zip(every, lengths, strict=True)]


def share_numbers(numbers: Sequence[int], group: dist.ProcessGroup) -> list[int]:
    """The first rank's numbers on every rank; every rank gives as many."""
    tensor = torch.tensor(numbers, dtype=torch.int64, device=device_of(group))
    dist.broadcast(tensor, group=group, group_src=0)
    return [int(number) for number in tensor]


Described = list[tuple[str, list[int]] | None]
"""Dtype and shape of each tensor; None where there is none."""


def describe(tensors: Sequence[Tensor | None]) -> Described:
    """What `collect` has to know before the tensors come."""
    return [None if x is None else (str(x.dtype).removeprefix("torch."), list(x.shape)) for x in tensors]


def collect(
    tensors: Sequence[Tensor | None], described: Sequence[Described], group: dist.ProcessGroup
) -> list[tuple[Tensor | None, ...]]:
    """Every rank's tensors on the first rank, in rank order; nothing on the others. described: by rank."""
    if dist.get_rank(group) > 0:
        sent = [x.detach().contiguous().view(-1).view(torch.uint8) for x in tensors if x is not None]
        _exchange([dist.P2POp(dist.isend, x, group=group, group_peer=0) for x in sent if x.numel()])
        return []
    where = device_of(group)
    received = [
        tuple(None if x is None else torch.empty(x[1], dtype=getattr(torch, x[0]), device=where) for x in theirs)
        for theirs in described[1:]
    ]
    memory = [(rank, x.view(-1).view(torch.uint8)) for rank, theirs in enumerate(received, 1) for x in theirs
              if x is not None and x.numel()]  # fmt: skip
    _exchange([dist.P2POp(dist.irecv, x, group=group, group_peer=rank) for rank, x in memory])
    return [tuple(tensors), *received]


def _exchange(operations: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
