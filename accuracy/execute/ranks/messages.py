"""What ranks tell each other: texts, numbers and tensors, by collectives. Nothing that arrives is unpickled.

A text travels as a uint8 tensor of its UTF-8 bytes, a tensor as its bytes; the receiver knows dtype and shape from a
text that came before. `where`: the device whose tensors the group carries.
"""

import time
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

FOREVER = timedelta(days=365)
"""The time limit of a process group; a case has one of its own."""
NOTE_BYTES = 4096
POLL_SECONDS = 0.002


class Stuck(RuntimeError):
    """Other ranks did not come in time."""


def device_of(group: dist.ProcessGroup) -> str:
    """The device whose tensors a group carries, `cpu` or `cuda`."""
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"


def share(text: str, group: dist.ProcessGroup) -> list[str]:
    """Every rank's text on every rank, in rank order."""
    where = device_of(group)
    mine = torch.tensor(list(text.encode()), dtype=torch.uint8, device=where)
    lengths = [torch.zeros(1, dtype=torch.int64, device=where) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, torch.tensor([len(mine)], device=where), group=group)
    counts = [int(length) for length in lengths]
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=where)
    padded[: len(mine)] = mine
    every = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(every, padded, group=group)
    return [bytes(x[:count].tolist()).decode() for x, count in zip(every, counts, strict=True)]


def share_notes(note: str, group: dist.ProcessGroup, patience: float | None) -> list[str]:
    """Every rank's note of at most `NOTE_BYTES` on every rank of a gloo group, in rank order.

    patience: seconds that the others may take to come (None: as long as the group has). Raises Stuck after them, and
    another RuntimeError where a rank is gone.
    """
    mine = torch.frombuffer(bytearray(note.encode().ljust(NOTE_BYTES)), dtype=torch.uint8)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(every, mine, group=group, async_op=True)
    deadline = time.monotonic() + (patience or 0.0)
    while patience is not None and not work.is_completed():
        if time.monotonic() > deadline:
            raise Stuck
        time.sleep(POLL_SECONDS)
    work.wait()
    return [bytes(each.numpy()).decode() for each in every]


def share_numbers(numbers: Sequence[int], group: dist.ProcessGroup) -> list[int]:
    """The first rank's numbers on every rank; every rank gives as many."""
    tensor = torch.tensor(numbers, dtype=torch.int64, device=device_of(group))
    dist.broadcast(tensor, group=group, group_src=0)
    return [int(number) for number in tensor]


def all_agree(fine: bool, group: dist.ProcessGroup) -> bool:
    """Whether every rank says yes; no rank goes on before all have come."""
    flag = torch.tensor([int(fine)], dtype=torch.int32, device=device_of(group))
    dist.all_reduce(flag, dist.ReduceOp.MIN, group=group)
    return bool(flag)


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
    _exchange(
        [
            dist.P2POp(dist.irecv, x.view(-1).view(torch.uint8), group=group, group_peer=rank)
            for rank, theirs in enumerate(received, 1)
            for x in theirs
            if x is not None and x.numel()
        ]
    )
    return [tuple(tensors), *received]


def _exchange(operations: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
