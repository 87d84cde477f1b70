"""A rank of its own: joins the others, then waits for cases, runs its part of them and hands the results back.

Started by `accuracy.ranks.pool`, one process a rank. It ends when the pool says so, and when the pool's process is
gone, however that happened: a thread waits on a pipe that closes with it.
"""

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from accuracy import device
from accuracy.case import Case
from accuracy.program import build_kernel, rank_program
from accuracy.world.base import Results, Tensors
from accuracy.world.processes import ProcessesWorld, run_rank


@dataclass(frozen=True)
class Start:
    """How a worker joins the others.

    sizes: the world sizes that will be asked for, the largest last: as many processes; store: the file through which
    they find each other; threads: of its CPU work.
    """

    rank: int
    sizes: tuple[int, ...]
    backend: str
    store: str
    threads: int


@dataclass(frozen=True)
class Job:
    """A case and this rank's q, k, v, dout (B, S/W, heads, D)."""

    case: Case
    shards: Tensors


@dataclass(frozen=True)
class Done:
    """out, lse, dq, dk, dv of this rank as stored, and what they took."""

    results: Results
    cost: device.Cost


@dataclass(frozen=True)
class Failed:
    """Why this rank has no results."""

    reason: str


READY = "ready"


def serve(start: Start, jobs: Connection, lifeline: Connection) -> None:
    """The worker's life: READY once joined, then Done or Failed for every Job, until None comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's to handle
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    device.make_arithmetic_exact()
    torch.set_num_threads(start.threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: the ranks meet on its own interface
    if start.backend == "nccl":
        torch.cuda.set_device(start.rank)
    dist.init_process_group(
        start.backend, init_method=f"file://{start.store}", rank=start.rank, world_size=start.sizes[-1]
    )
    groups = {size: dist.new_group(list(range(size))) for size in start.sizes}  # every process makes every group
    with contextlib.suppress(EOFError, OSError):  # a pool that has given up on us
        jobs.send(READY)
        while (job := jobs.recv()) is not None:
            held = _answer(job, start.rank, groups)  # kept until the next job: the pool reads its memory
            jobs.send(held)


def _answer(job: Job, rank: int, groups: dict[int, dist.ProcessGroup]) -> Done | Failed:
    try:
        group = groups[job.case.world_size]
        shards = tuple(tensor.to(job.case.device) for tensor in job.shards)
        mine: list[Any] = [None] * job.case.world_size
        mine[rank] = shards
        program = rank_program(job.case, build_kernel(job.case), mine)
        dist.barrier(group)
        with device.measured(job.case.device) as cost:
            results = run_rank(program, ProcessesWorld(rank, job.case.world_size, group))
        return Done(results, cost)
    except Exception as error:  # whatever happens to a rank is told, not lost
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])


def _end_with(lifeline: Connection) -> None:
    try:
        lifeline.recv()
    except (EOFError, OSError):
        os._exit(1)
