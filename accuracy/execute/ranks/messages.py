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
SHORT_BYTES, LENGTH_BYTES = 2048, 8
"""Of a text that is sent at once, behind its length; a longer one takes a second exchange."""


class Stuck(RuntimeError):
    """Other ranks did not come in time."""


def device_of(group: dist.ProcessGroup) -> str:
    """Return the device whose tensors a group carries, `cpu` or `cuda`."""
    return "cuda" if dist.get_backend(group) == "nccl" else "cpu"


def share(text: str, group: dist.ProcessGroup, patience: float | None = None) -> list[str]:
    """Return every rank's text on every rank, in rank order. patience: seconds that the others may take to come (None:
    as long as the group has). Raises Stuck after them, and another RuntimeError where a rank is gone."""
    own, bytes_each = text.encode(), SHORT_BYTES
    deadline = None if patience is None else time.monotonic() + patience
    while True:
        framed = (len(own).to_bytes(LENGTH_BYTES, "big") + own)[:bytes_each].ljust(bytes_each, b"\0")
        every = _gathered(framed, group, deadline)
        lengths = [int.from_bytes(each[:LENGTH_BYTES], "big") for each in every]
        if LENGTH_BYTES + max(lengths) <= bytes_each:
            return [each[LENGTH_BYTES:][:length].decode() for each, length in zip(every, lengths, strict=True)]
        bytes_each, deadline = LENGTH_BYTES + max(lengths), None


def _gathered(own: bytes, group: dist.ProcessGroup, deadline: float | None) -> list[bytes]:
    """Return every rank's bytes, as many each, on every rank: through the first, as gloo's all-gather among 4 ranks
    takes 3 to 5 times as long. Nobody leaves before all have come. deadline: of the others, in monotonic seconds.
    Raises Stuck."""
    every = torch.zeros(dist.get_world_size(group), len(own), dtype=torch.uint8, device=device_of(group))
    sent = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(every.device)
    places = list(every.unbind()) if dist.get_rank(group) == 0 else None
    _wait(dist.gather(sent, places, group=group, group_dst=0, async_op=True), deadline)
    _wait(dist.broadcast(every, group=group, group_src=0, async_op=True), deadline)
    return [bytes(each) for each in every.cpu().numpy()]


def _wait(work: dist.Work, deadline: float | None) -> None:
    while deadline is not None and not work.is_completed():
        if time.monotonic() > deadline:
            raise Stuck
        time.sleep(POLL_SECONDS)
    work.wait()


def broadcast(content: bytes, group: dist.ProcessGroup) -> bytes:
    """Return the first rank's bytes on every rank."""
    length = int(share(str(len(content)), group)[0])
    own = content if dist.get_rank(group) == 0 else bytes(length)
    tensor = torch.frombuffer(bytearray(own or b"\0"), dtype=torch.uint8).to(device_of(group))
    dist.broadcast(tensor, group=group, group_src=0)
    return bytes(tensor.cpu().numpy())[:length]


Described = list[tuple[str, list[int]] | None]
"""Dtype and shape of each tensor; None where there is none."""


def describe(tensors: Sequence[Tensor | None]) -> Described:
    """Return what `collect` has to know before the tensors come."""
    return [None if x is None else (str(x.dtype).removeprefix("torch."), list(x.shape)) for x in tensors]


def collect(
    tensors: Sequence[Tensor | None], described: Sequence[Described], group: dist.ProcessGroup
) -> list[tuple[Tensor | None, ...]]:
    """Return every rank's tensors on the first rank, in rank order; nothing on the others. described: by rank."""
    if dist.get_rank(group) > 0:
        sent = [x.detach().contiguous().view(-1).view(torch.uint8) for x in tensors if x is not None]
        _exchange([dist.P2POp(dist.isend, x, group=group, group_peer=0) for x in sent if x.numel()])
        return []
    where = next(x.device for x in tensors if x is not None)
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
