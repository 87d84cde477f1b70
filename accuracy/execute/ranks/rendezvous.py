"""How the processes of a run's ranks find each other, and the groups that they then are. On one machine they meet in a
file that nobody else can read, and speak over its loopback interface. Under a launcher they meet at its store, or
(srun, submitit) at one of the first rank, which listens on the launch's address alone."""

import ipaddress
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from accuracy.core.errors import ConfigError, NoRendezvous
from accuracy.execute.ranks import messages
from accuracy.execute.start import Launch

START_SECONDS = 120.0  # for all ranks to import torch and to find each other


class Ranks(NamedTuple):
    """This process's rank among `size`; control: carries texts and numbers; data: by world size, of the first ranks."""

    rank: int
    size: int
    control: dist.ProcessGroup
    data: dict[int, dist.ProcessGroup]


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process by SIGALRM, whatever it is doing, when the body takes longer."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e9))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def join_on_machine(folder: Path, backend: str, sizes: Sequence[int]) -> Ranks:
    """Meet the other ranks that this machine's agent started. folder: one that only this user can read."""
    rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    with time_limit(START_SECONDS):
        control = _initialize(dist.FileStore(str(folder / f"store-{attempt}")), rank, sizes[-1], backend, rank, True)
        return _grouped(rank, sizes, control, backend)


def join_launched(launch: Launch, backend: str, sizes: Sequence[int], plan: str) -> Ranks:
    """Meet the other processes of a launch. plan: in a word, what they have to agree on. Raises ConfigError where they
    do not, where two share a GPU, and where they do not find each other."""
    gpu = 0 if torch.cuda.device_count() <= 1 else launch.local_rank  # a scheduler may show a process one GPU
    with time_limit(2 * START_SECONDS):
        try:
            if dist.is_initialized():  # a job of a sweep before
                control = dist.new_group(backend="gloo", timeout=messages.FOREVER)
            else:
                control = _initialize(_store(launch), launch.rank, launch.size, backend, gpu, launch.one_host)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise NoRendezvous(
                f"rank {launch.rank} on {socket.gethostname()} does not find the other {launch.size - 1} at"
                f" {launch.host}:{launch.port} ({reason}); let all processes of {launch.by} run the same command"
            ) from error
        if len(set(messages.share(plan, control))) > 1:
            raise ConfigError("the launched processes plan other cases; let all of them run the same command")
        if backend == "nccl":
            _check_gpus(gpu, control)
        return _grouped(launch.rank, [*sizes, launch.size], control, backend)


def _initialize(store: dist.Store, rank: int, size: int, backend: str, gpu: int, one_host: bool) -> dist.ProcessGroup:
    if one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if backend == "nccl" and gpu < torch.cuda.device_count():
        torch.cuda.set_device(gpu)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=messages.FOREVER)
    return dist.new_group(backend="gloo", timeout=messages.FOREVER)


def _grouped(rank: int, sizes: Sequence[int], control: dist.ProcessGroup, backend: str) -> Ranks:
    """Every process makes every group; NCCL connects at the first use, which no case shall pay for."""
    size = max(sizes)
    data = {each: dist.new_group(list(range(each)), timeout=messages.FOREVER) for each in sorted(set(sizes))}
    for each, group in data.items():
        if backend == "nccl" and rank < each:
            dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
    return Ranks(rank, size, control, data)


def _store(launch: Launch) -> dist.Store:
    """torchrun's own store, or one that the first rank opens. Raises ConfigError."""
    wait = timedelta(seconds=START_SECONDS)
    if launch.rank > 0 or launch.agent:
        store = dist.TCPStore(launch.host, launch.port, is_master=False, timeout=wait)
    else:
        family, _, _, _, address = socket.getaddrinfo(launch.host, launch.port, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(address[0]).is_loopback and not launch.one_host:
            raise NoRendezvous(
                f"{launch.host} is {address[0]} on its own machine, which no other one reaches; set MASTER_ADDR"
            )
        try:
            listener = socket.create_server(address[:2], family=family)
        except OSError as error:
            raise NoRendezvous(
                f"port {launch.port} of {launch.host} cannot be opened ({error.strerror}); set MASTER_PORT"
            ) from error
        store = dist.TCPStore(
            launch.host, launch.port, None, True, wait, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    return dist.PrefixStore(f"accuracy/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def _check_gpus(gpu: int, control: dist.ProcessGroup) -> None:
    own = str(torch.cuda.get_device_properties(gpu).uuid) if gpu < torch.cuda.device_count() else ""
    owners: dict[str, int] = {}
    for rank, text in enumerate(messages.share(f"{socket.gethostname()} {own}", control)):
        host, _, uuid = text.partition(" ")
        if not uuid:
            raise ConfigError(f"rank {rank} on {host} has no GPU; start as many processes as GPUs, or set device=cpu")
        if owners.setdefault(text, rank) != rank:
            raise ConfigError(f"ranks {owners[text]} and {rank} on {host} share a GPU; start as many processes as GPUs")
