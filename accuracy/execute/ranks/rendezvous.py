"""How launched processes find each other: a store at the launch's address holds the first one's door and its key."""

import datetime
import queue
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener

import torch.distributed as dist

from accuracy.core.errors import ConfigError
from accuracy.execute.ranks.base import START_SECONDS
from accuracy.execute.ranks.launch import Launch
from accuracy.execute.ranks.wire import Wire

DOOR, KEY = "accuracy/door", "accuracy/key"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def store(launch: Launch, seconds: float = START_SECONDS) -> dist.TCPStore:
    """The launch's store: torchrun's own, or one that the first process opens. Raises ConfigError."""
    mine = launch.rank == 0 and not launch.agent
    try:
        return dist.TCPStore(
            launch.host,
            launch.port,
            is_master=mine,
            timeout=datetime.timedelta(seconds=seconds),
            wait_for_workers=False,
        )
    except (RuntimeError, ValueError) as error:
        what = "cannot be opened" if mine else "has nobody"
        reason = " ".join(str(error).split()).partition(" Exception raised")[0]
        raise ConfigError(f"port {launch.port} of {launch.host} {what} ({reason}); set MASTER_PORT") from error


@contextmanager
def door(launch: Launch, where: dist.TCPStore) -> Iterator["queue.Queue[Wire]"]:
    """Open the first process's door; who comes with the right key is in the queue."""
    key = secrets.token_bytes(32)
    listener = Listener(("127.0.0.1" if launch.host in LOOPBACK else "", 0), backlog=launch.size, authkey=key)
    wires: queue.Queue[Wire] = queue.Queue()

    def let_in() -> None:
        while True:
            try:
                wires.put(Wire(listener.accept()))
            except OSError:  # closed
                return
            except Exception:  # a stranger without the key
                continue

    threading.Thread(target=let_in, daemon=True).start()
    where.set(KEY, key.hex())
    where.set(DOOR, f"{launch.host}:{listener.address[1]}")
    try:
        yield wires
    finally:
        listener.close()


def join(launch: Launch) -> Wire:
    """Go through the first process's door. Raises ConfigError."""
    where = store(launch)
    try:
        host, _, port = where.get(DOOR).decode().rpartition(":")
        connection: Connection = Client((host, int(port)), authkey=bytes.fromhex(where.get(KEY).decode()))
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"rank {launch.rank} on {socket.gethostname()} finds no rank 0 at {launch.host}:{launch.port} ({error});"
            " let all processes of the launch run the same command"
        ) from error
    return Wire(connection)
