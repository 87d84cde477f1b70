"""What the handle of a transfer promises: each rank tries it, for `collectives.py`."""

import time

import torch
import torch.distributed as dist


def found(rank: int, size: int, device: str) -> list[str]:
    mine, wrong = torch.full((4,), rank, device=device), []
    theirs = torch.empty_like(mine)
    sent = dist.isend(mine, (rank + 1) % size)
    mine += 1
    dist.recv(theirs, (rank - 1) % size)
    try:
        sent.wait()
        wrong.append("a write to what is on its way is not seen")
    except RuntimeError as error:
        wrong += [] if f"rank {rank} wrote to a tensor on its way" in str(error) else [str(error)]
    work = dist.all_reduce(mine, async_op=True)
    deadline = time.monotonic() + 60
    while not work.is_completed() and time.monotonic() < deadline:
        time.sleep(0.001)
    expected = size * (size - 1) // 2 + size  # each has added 1
    if not (work.is_completed() and work.get_future().value() and mine.tolist() == [expected] * 4):
        wrong.append("who asks whether it is done is never told")
    try:
        dist.all_reduce(torch.ones(4, 2, device=device).T)
        wrong.append("a tensor that is not contiguous is taken, which NCCL refuses")
    except ValueError:
        pass
    return wrong + (waited_elsewhere(rank, size) if device == "cuda" else [])


def waited_elsewhere(rank: int, size: int) -> list[str]:
    """What goes wrong where a send begins on a stream that has much to do, and is waited for on another."""
    busy, value = torch.cuda.Stream(), torch.zeros(2**16, device="cuda")
    torch.cuda.synchronize()
    theirs, own = torch.empty_like(value), torch.empty_like(value)
    with torch.cuda.stream(busy):
        torch.cuda._sleep(2 * 10**8)
        value += 1 + rank
        works = [dist.isend(value, to) for to in ((rank + 1) % size, rank)]
    dist.recv(theirs, (rank - 1) % size)
    dist.recv(own, rank)
    try:
        for work in works:
            work.wait()
    except RuntimeError as error:
        return [f"waited for on another stream: {error}"]
    right = bool((theirs == 1 + (rank - 1) % size).all() and (own == 1 + rank).all())
    return [] if right else ["what is waited for on another stream has another value"]
