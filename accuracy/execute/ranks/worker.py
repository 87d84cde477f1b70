"""A rank of its own: joins the others, then waits for cases, runs its part of them and hands the results back.

Started by `accuracy.execute.ranks.local`, one process a rank. It ends when it is told to, and when the process that
started it is gone, however that happened: a thread waits on a pipe that closes with it.
"""

import contextlib
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from accuracy.execute.ranks.base import READY, Done, Failed, Job, Start
from accuracy.runtime import arithmetic, device
from accuracy.simulate.program import build_kernel, rank_program
from accuracy.world.processes import ProcessesWorld, run_rank


def serve(start: Start, jobs: Connection, lifeline: Connection) -> None:
    """The worker's life: READY once joined, then Done or Failed for every Job, until None comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's to handle
    end_with(lifeline)
    arithmetic.make_exact()
    torch.set_num_threads(start.threads)
    if start.one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the ranks meet on the machine's own interface
    gpu = None
    if start.backend == "nccl":
        torch.cuda.set_device(start.gpu)
        gpu = torch.device("cuda", start.gpu)  # named, so that no collective has to guess it
    dist.init_process_group(
        start.backend, store=_store(start.store), rank=start.rank, world_size=start.sizes[-1], device_id=gpu
    )
    groups = {size: dist.new_group(list(range(size))) for size in start.sizes}  # every process makes every group
    with contextlib.suppress(EOFError, OSError):  # a pool that has given up on us
        jobs.send(READY)
        while (job := jobs.recv()) is not None:
            held = _answer(job, start, groups)  # kept until the next job: the pool reads its memory
            jobs.send(held)


def _store(place: str) -> dist.Store:
    """The store at `file://PATH` or `tcp://HOST:PORT/PREFIX`."""
    where = urlsplit(place)
    if where.scheme == "file":
        return dist.FileStore(where.path)
    store = dist.TCPStore(str(where.hostname), int(where.port or 0), is_master=False)
    return dist.PrefixStore(where.path, store)


def _answer(job: Job, start: Start, groups: dict[int, dist.ProcessGroup]) -> Done | Failed:
    rank = start.rank
    try:
        group = groups[job.case.world_size]
        shards = tuple(tensor.to(job.case.device) for tensor in job.shards)
        mine: list[Any] = [None] * job.case.world_size
        mine[rank] = shards
        program = rank_program(job.case, build_kernel(job.case), mine)
        dist.barrier(group)
        with device.measured(job.case.device) as cost, device.poisoned(job.case.reruns.poison):
            results = run_rank(program, ProcessesWorld(rank, job.case.world_size, group))
        if start.far:
            results = tuple(x if x is None else x.cpu() for x in results)
        return Done(results, cost)
    except (Exception, SystemExit) as error:  # whatever happens to a rank is told; some packages call exit()
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}"[:500])


def end_with(lifeline: Connection) -> None:
    """From now on this process ends, whatever it is doing, when the other end of the pipe is closed."""

    def watch() -> None:
        try:
            lifeline.recv()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
