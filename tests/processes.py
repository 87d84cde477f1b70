"""Processes of this machine: whether they live, which belong to a test, and waiting until something is so."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int) -> bool:
    """Running; a zombie waiting for its parent is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def marked(mark: str) -> list[int]:
    """Processes that inherited an environment variable of this value."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes() and alive(int(folder.name)):
                found.append(int(folder.name))
    return found


def wait_until(true: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
