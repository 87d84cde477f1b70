"""No process that a run started outlives it, whatever a user's function forked and however the run ended.

All processes of a run descend from one server (`start.py`), whose environment has a mark. Each of them shows it in
/proc (Linux), also one that left its session and its parents. As a script this is the guard: a process of its own
session that waits for the end of the one that started it, which may be killed, and then kills whatever has the mark.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

NAME = "ACCURACY_PROCESS"
SECONDS = 2.0
"""For all marked processes to be gone; in that time, one may fork while others are killed."""


def marked(mark: str) -> list[int]:
    """Return the processes whose environment had the mark when they, or what they were forked from, began."""
    entry, found = f"{NAME}={mark}\0".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def kill(mark: str, server: int = 0, spared: Collection[int] = ()) -> None:
    """Kill all marked processes, again until none is left, but the server, and some with what descends from them."""
    deadline = time.monotonic() + SECONDS

    def living() -> list[int]:
        return [pid for pid in marked(mark) if pid != server and not {*_line(pid)} & {*spared}]

    killed = set[int]()
    while (left := living()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed.update(left)
        time.sleep(0.01)
    remove_shared_memory(killed)


def remove_shared_memory(ended: Iterable[int]) -> None:
    """Remove the files by which processes that were killed shared a GPU's memory; torch and CUDA leave them then."""
    for pid in ended:
        for pattern in (f"torch_{pid}_*", f"cuda.shm.*.{pid:x}.*"):
            for file in Path("/dev/shm").glob(pattern):
                with contextlib.suppress(OSError):
                    file.unlink()


def _line(pid: int) -> Iterator[int]:
    """A process and those that it descends from."""
    while pid > 1:
        yield pid
        pid = stat(pid)[1]


def stat(pid: int) -> tuple[str, int]:
    """The state of a process, T where it is stopped, and its parent."""
    with contextlib.suppress(OSError, IndexError):
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return state, int(parent)
    return "", 0


if __name__ == "__main__":
    sys.stdin.read()  # its end is closed where the parent, which alone holds it open, has ended
    kill(sys.argv[1])
