"""How the processes of a run's ranks find each other, and the groups that they then are. On one machine they meet in a
file that nobody else can read, and speak over its loopback interface. Under torchrun they meet at its store."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from accuracy.core.errors import ConfigError, NoRendezvous
from accuracy.execute.ranks import messages
from accuracy.execute.start import Launch, ends_after
from accuracy.world import shared_gpu

START_SECONDS = 120.0  # for all ranks to import torch and to find each other


class Ranks(NamedTuple):
    """This process's rank among `size`; control: carries texts and numbers; data: by world size, of the first ranks."""

    rank: int
    size: int
    control: dist.ProcessGroup
    data: dict[int, dist.ProcessGroup]


def join_on_machine(folder: Path, backend: str, sizes: Sequence[int], shared: Sequence[int] = ()) -> Ranks:
    """Meet the other ranks that this machine's agent started. folder: one that only this user can read; shared: the
    sizes whose ranks share a GPU."""
    rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    store = dist.FileStore(str(folder / f"store-{attempt}"))
    control = _initialize(store, rank, sizes[-1], backend, rank, True, bool(shared))
    return Ranks(rank, sizes[-1], control, _groups(rank, sizes, backend, shared))


def join_launched(launch: Launch, backend: str, sizes: Sequence[int], plan: str, shared: Sequence[int] = ()) -> Ranks:
    """Meet the other processes of a launch. plan: in a word, what they have to agree on; shared: the sizes whose ranks
    share a GPU. Raises ConfigError where they do not agree, and where they do not find each other."""
    with ends_after(2 * START_SECONDS):
        with _found(launch):
            if dist.is_initialized():  # a job of a sweep before
                control = dist.new_group(backend="gloo", timeout=messages.FOREVER)
            else:
                control = _initialize(
                    _store(launch), launch.rank, launch.size, backend, launch.local_rank, launch.one_host, bool(shared)
                )
        if len(set(messages.share(plan, control))) > 1:
            raise ConfigError("the launched processes plan other cases; let all of them run the same command")
        return Ranks(launch.rank, launch.size, control, _groups(launch.rank, sizes, backend, shared))


def join_as_default(launch: Launch) -> None:
    """Make the processes of a launch torch.distributed's default group, for CUDA tensors. Raises ConfigError."""
    backend = "nccl" if with_own_gpu(launch) == launch.size else shared_gpu.NAME
    with _found(launch):
        _on_loopback(launch.one_host)
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
        dist.init_process_group(backend, store=_store(launch), rank=launch.rank, world_size=launch.size)


@contextmanager
def _found(launch: Launch) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise NoRendezvous(
            f"rank {launch.rank} on {socket.gethostname()} does not find the other {launch.size - 1} at"
            f" {launch.host}:{launch.port} ({reason}); let all processes of torchrun run the same command"
        ) from error


def _initialize(
    store: dist.Store, rank: int, size: int, backend: str, local_rank: int, one_host: bool, shared: bool
) -> dist.ProcessGroup:
    _on_loopback(one_host)
    if backend == "nccl" and torch.cuda.device_count():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    backend = shared_gpu.NAME if shared else backend
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=messages.FOREVER)
    return dist.new_group(backend="gloo", timeout=messages.FOREVER)


def _on_loopback(one_host: bool) -> None:
    if one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def _groups(rank: int, sizes: Sequence[int], backend: str, shared: Sequence[int]) -> dict[int, dist.ProcessGroup]:
    """Every process makes every group; NCCL connects at the first use, which no case shall pay for."""
    backends = {size: shared_gpu.NAME if size in shared else backend for size in sorted(set(sizes))}
    groups = {size: dist.new_group(list(range(size)), messages.FOREVER, each) for size, each in backends.items()}
    for size, group in groups.items():
        if backend == "nccl" and rank < size:
            dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    return groups


@cache
def _store(launch: Launch) -> dist.Store:
    """Return torchrun's own store; of another launcher, one that the first rank opens at the launch's address alone."""
    listener = None
    if launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        family, *_, address = socket.getaddrinfo(launch.host, launch.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family).detach()
    store = dist.TCPStore(
        launch.host, launch.port, None, listener is not None, timedelta(seconds=START_SECONDS), wait_for_workers=False,
        master_listen_fd=listener,
    )  # fmt: skip
    return dist.PrefixStore(f"accuracy/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def with_own_gpu(launch: Launch, must: bool = False) -> int:
    """Return how many of a launch's first ranks have a GPU each. must: whether all of them are to. Raises ConfigError
    where they are and have not, and for a rank without any GPU."""
    count = torch.cuda.device_count()  # a scheduler may show a process one GPU
    own = str(torch.cuda.get_device_properties(launch.local_rank % count).uuid) if count else ""
    with _found(launch):
        store = _store(launch)
        store.set(f"gpu/{launch.rank}", f"{socket.gethostname()} {own}")
        texts = [store.get(f"gpu/{rank}").decode() for rank in range(launch.size)]
    owners: dict[str, int] = {}
    for rank, text in enumerate(texts):
        host, _, uuid = text.partition(" ")
        if not uuid:
            raise ConfigError(f"rank {rank} on {host} has no GPU; start no process without one, or set device=cpu")
        if owners.setdefault(text, rank) != rank and must:
            raise ConfigError(
                f"ranks {owners[text]} and {rank} on {host} share a GPU; start as many processes as GPUs, or drop"
                " world.processes.share_gpu=false"
            )
    return next((rank for rank, text in enumerate(texts) if owners[text] != rank), launch.size)
