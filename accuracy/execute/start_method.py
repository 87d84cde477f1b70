"""The server that workers and ranks are forked from, which imports once what they take. Starting a process settles for
all of Python how processes are started, unless that is taken back."""

import gc
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any


def preload(modules: Sequence[str]) -> None:
    """Let the server import these, where it is not at work yet; pandas too, which pyarrow imports with the first rows
    that a process writes."""
    multiprocessing.set_forkserver_preload(["accuracy.execute.no_collection", *modules, "pandas"])


def start_server(modules: Sequence[str]) -> None:
    """Start the server, which imports the modules while this process goes on."""
    preload(modules)
    resource_tracker.ensure_running()  # which lets SIGINT in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is not for the server
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def collect() -> None:
    """In a process of the server: garbage from now on."""
    gc.freeze()
    gc.enable()


@contextmanager
def kept() -> Iterator[None]:
    """A body that starts processes in a way of its own; the caller may still choose his afterwards."""
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        if before is None:
            multiprocessing.set_start_method(None, force=True)


@contextmanager
def main_is_not_imported() -> Iterator[None]:
    """multiprocessing imports the main module in each child: a script without a guard would start itself again."""
    names: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: names.pop(name) for name in ("__spec__", "__file__") if name in names}
    names["__spec__"] = None
    try:
        yield
    finally:
        names.update(hidden)
