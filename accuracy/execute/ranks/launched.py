"""The first of many launched processes as the head of all: it drives the run, the others keep a worker each."""

import queue
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from accuracy.core.errors import ConfigError
from accuracy.execute.ranks import local, rendezvous
from accuracy.execute.ranks.base import START_SECONDS, Job, RankEnded, Start, Worker, WorldFailed, threads_of
from accuracy.execute.ranks.launch import Launch
from accuracy.execute.ranks.launched_rank import Ended, Hello, Kill, Killed, hello
from accuracy.execute.ranks.wire import Wire

KILL_SECONDS = 30.0  # for a keeper to say that its worker is gone


@dataclass(frozen=True)
class RemoteWorker:
    """A worker that a keeper keeps; see `accuracy.execute.ranks.base.Worker`."""

    rank: int
    wire: Wire

    @property
    def signs(self) -> tuple[Any, ...]:
        """See `Worker.signs`."""
        return (self.wire,)

    def send(self, message: Job | None) -> None:
        """See `Worker.send`."""
        self._send(message)

    def receive(self) -> Any:
        """See `Worker.receive`."""
        try:
            answer = self.wire.recv()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        if isinstance(answer, Ended):
            raise RankEnded(answer.how)
        return answer

    def kill(self) -> None:
        """See `Worker.kill`."""
        with suppress(WorldFailed):
            self._send(Kill())

    def join(self) -> None:
        """See `Worker.join`. What the worker had still said is dropped."""
        deadline = time.monotonic() + KILL_SECONDS
        with suppress(EOFError, OSError):
            while self.wire.poll(max(0.0, deadline - time.monotonic())):
                if isinstance(self.wire.recv(), Killed):
                    return

    def _send(self, message: Any) -> None:
        try:
            self.wire.send(message)
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> RankEnded:
        return RankEnded(f"rank {self.rank}: its launched process is gone")


@dataclass
class Crew:
    """All launched processes, seen from the first; see `accuracy.execute.ranks.base.Launcher`."""

    launch: Launch
    store: dist.TCPStore  # held: a store of our own ends with it
    hellos: Sequence[Hello]  # in rank order
    wires: dict[int, Wire]
    started: int = 0

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.launch.size

    def check(self, world: str, device: str) -> None:
        """That the run can use them: as real ranks, each with a GPU of its own on CUDA. Raises ConfigError."""
        if world != "processes":
            raise ConfigError(
                f"{self.launch.by} started {self.size} processes, but world={world} needs one; use world=processes,"
                f" or start accuracy without {self.launch.by}"
            )
        if device == "cuda":
            self._check_gpus()

    def _check_gpus(self) -> None:
        owners: dict[str, int] = {}
        for each in self.hellos:
            if each.gpu_id is None:
                raise ConfigError(
                    f"rank {each.rank} on {each.host} has no GPU; start as many processes as GPUs, or set device=cpu"
                )
            other = owners.setdefault(each.gpu_id, each.rank)
            if other != each.rank:
                raise ConfigError(
                    f"ranks {other} and {each.rank} on {each.host} share a GPU; start as many processes as GPUs"
                )

    def start(self, sizes: tuple[int, ...], backend: str) -> Iterator[Worker]:
        """See `Launcher.start`. Each time under a new prefix of the store: nothing of the last ranks is found."""
        self.started += 1
        store = f"tcp://{self.launch.host}:{self.launch.port}/accuracy/{self.started}"
        members = self.hellos[: sizes[-1]]
        together = Counter(each.host for each in members)
        for each in members:
            how = Start(
                rank=each.rank,
                sizes=sizes,
                backend=backend,
                store=store,
                threads=threads_of(backend, together[each.host]),
                gpu=each.gpu,
                one_host=len(together) == 1,
                far=each.rank > 0,
            )
            if each.rank == 0:
                yield local.start(how)
            else:
                worker = RemoteWorker(each.rank, self.wires[each.rank])
                worker._send(how)
                yield worker

    def clean(self) -> None:
        """See `Launcher.clean`."""


@contextmanager
def gather(launch: Launch) -> Iterator[Crew]:
    """Wait for all other processes of the launch; they end when the context does. Raises ConfigError."""
    store = rendezvous.store(launch)
    wires: dict[int, Wire] = {}
    hellos = {0: hello(launch)}
    try:
        with rendezvous.door(launch, store) as arriving:
            deadline = time.monotonic() + START_SECONDS
            while len(hellos) < launch.size:
                wire = _next(arriving, deadline, launch, hellos)
                greeting: Hello = wire.recv()
                hellos[greeting.rank], wires[greeting.rank] = greeting, wire
            crew = Crew(launch, store, [hellos[rank] for rank in range(launch.size)], wires)
            yield crew
    finally:
        for wire in wires.values():
            wire.close()


def _next(arriving: "queue.Queue[Wire]", deadline: float, launch: Launch, hellos: dict[int, Hello]) -> Wire:
    try:
        return arriving.get(timeout=max(0.0, deadline - time.monotonic()))
    except queue.Empty:
        missing = ", ".join(str(rank) for rank in range(launch.size) if rank not in hellos)
        raise ConfigError(
            f"of the {launch.size} processes that {launch.by} started, rank {missing} did not come within"
            f" {START_SECONDS:g} s; let all of them run the same command"
        ) from None
