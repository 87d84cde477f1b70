"""How processes start: this one (alone, or as one of many by torchrun), and those that it starts itself, which are
forked from a server that has imported torch once."""

import atexit
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver, resource_tracker
from typing import Any, NamedTuple

from accuracy.core.errors import ConfigError
from accuracy.execute import leftovers

GRADIENTS = "torch.fx.experimental.symbolic_shapes"  # torch imports it with the first gradient
OF_WORKERS, OF_RANKS = ("accuracy.execute.worker", GRADIENTS), ("accuracy.execute.ranks.agent", GRADIENTS)
"""What the server imports for its processes, beside pandas, which pyarrow imports with the first rows it writes."""
NUMBERS = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"
"""Variables of a launched process's environment that hold numbers: its rank, how many processes there are, the same two
on its machine, the port at which they meet."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Addresses of MASTER_ADDR by which all processes are on one machine."""

only_workers_measure = False
"""Whether this process is the console command: it hands every case to another process, which may hang or end."""


@contextmanager
def ends_after(seconds: float) -> Iterator[None]:
    """End this process, which says where it is, when the body takes longer, whatever it does. Such bodies do not
    nest."""
    faulthandler.dump_traceback_later(min(seconds, threading.TIMEOUT_MAX), exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Launch(NamedTuple):
    """One of `size` processes that torchrun started; they meet at host:port. one_host: whether all of them are on this
    machine."""

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    one_host: bool = True


def launch(environment: Mapping[str, str]) -> Launch | None:
    """Return what the environment says, None for a process that was started alone. Raises ConfigError."""
    host = environment.get("MASTER_ADDR")
    if not host or not all(name in environment for name in NUMBERS):
        return None
    rank, size, local_rank, here, port = (_number(name, environment[name]) for name in NUMBERS)
    if size == 1:
        return None
    if rank >= size or not 0 < port < 2**16:
        words = f"RANK={rank} WORLD_SIZE={size} MASTER_PORT={port}"
        raise ConfigError(f"{words} in the environment; allowed: a rank below the size, and ports from 1 to 65535")
    return Launch(rank, size, local_rank, host, port, here == size or host in LOOPBACK)


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r} in the environment; allowed: a whole number")
    return int(text)


def preload(modules: Sequence[str]) -> None:
    """Let the server import these, unless it has started already."""
    multiprocessing.set_forkserver_preload([*modules, "pandas"])


def start_server(modules: Sequence[str]) -> None:
    """Start the server, which imports the modules while this process goes on, and the guard of its processes."""
    preload(modules)
    resource_tracker.ensure_running()  # it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is not for the server
    try:
        _start_guard()
        os.environ[leftovers.NAME] = _mark()
        forkserver.ensure_running()
    finally:
        os.environ.pop(leftovers.NAME, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def _mark_of(process: int) -> str:
    return f"{process}-{os.urandom(8).hex()}"


def _mark() -> str:
    return _mark_of(os.getpid())


_guards: dict[int, "subprocess.Popen[bytes]"] = {}


def _start_guard() -> None:
    """Once a process. Its input is a pipe whose other end no other process has."""
    process = os.getpid()
    if process not in _guards and only_workers_measure:  # whoever imports the package may use the server, too
        atexit.register(leftovers.kill, _mark())
    if process not in _guards and os.path.isdir("/proc/self"):
        words = [sys.executable, "-I", "-S", leftovers.__file__, _mark()]
        quiet = subprocess.DEVNULL
        _guards[process] = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True
        )


_runs = 0


@contextmanager
def no_process_stays() -> Iterator[None]:
    """Kill at the end what the body started, and what that started; the server stays. Of concurrent runs the last one's
    end counts."""
    global _runs
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1
        if not _runs:
            own = {each.pid or 0 for each in multiprocessing.active_children()}
            leftovers.kill(_mark(), forkserver._forkserver._forkserver_pid or 0, own)  # type: ignore[attr-defined]


@contextmanager
def starting() -> Iterator[None]:
    """Start processes in the body. Without this multiprocessing would import the main module in each of them, so that a
    script without a guard would run again, and would fix how all processes of the caller are started."""
    names: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: names.pop(name) for name in ("__spec__", "__file__") if name in names}
    names["__spec__"] = None
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        names.update(hidden)
        if before is None:
            multiprocessing.set_start_method(None, force=True)


def end_with_parent(status: int) -> None:
    """Let this process exit with the status once the process that started it is gone."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(status)

    threading.Thread(target=wait, daemon=True).start()
