"""Processes: starting Python ones, which belong to a test, where they listen, and waiting."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from accuracy.core.paths import PACKAGE

Process = subprocess.Popen[str]
LOOPBACK = ("127.0.0.1", "::1")


def start(*words: str, folder: Path | None = None, **variables: str) -> Process:
    """`python WORDS` with the package of this checkout, in a session of its own; variables: of its environment. One
    thread each: several tests run side by side."""
    places = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"} | variables
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, **how)


def python(*words: str, folder: Path | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The same, to its end."""
    return ended(start(*words, folder=folder, **variables))


def git(folder: Path, *words: str) -> str:
    own = ("git", "-c", "user.name=me", "-c", "user.email=me@localhost")
    return subprocess.run([*own, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def launch(size: int, *words: str, folder: Path | None = None, **variables: str) -> list[Process]:
    """So many ranks of `python WORDS` as torchrun starts them, but for its agent."""
    several = {"WORLD_SIZE": f"{size}", "LOCAL_WORLD_SIZE": f"{size}", "MASTER_ADDR": "127.0.0.1"}
    several |= {"MASTER_PORT": free_port()} | variables
    return [start(*words, folder=folder, **several, RANK=f"{rank}", LOCAL_RANK=f"{rank}") for rank in range(size)]


def launched(size: int, *words: str, folder: Path, **variables: str) -> list["subprocess.CompletedProcess[str]"]:
    """The same, to their end."""
    return [ended(each) for each in launch(size, *words, folder=folder, **variables)]


def ended(process: Process) -> "subprocess.CompletedProcess[str]":
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def marked(mark: str) -> list[int]:
    """Living processes that inherited an environment variable of this value."""
    import psutil  # which a GPU's machine may lack

    each = psutil.process_iter(["environ", "status"])
    found = [x for x in each if mark in (x.info["environ"] or {}).values() and x.info["status"] != psutil.STATUS_ZOMBIE]
    return [x.pid for x in found]


def wait_until(true: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """The addresses and ports that these processes accept TCP connections on."""
    import psutil

    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found |= {x.laddr for x in psutil.Process(pid).net_connections("tcp") if x.status == psutil.CONN_LISTEN}
    return found
