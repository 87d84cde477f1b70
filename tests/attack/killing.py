"""A command in a forked process that is killed: at its nth access to a file below a folder, or after some time."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "ctypes.dlsym", "os.scandir")
MOST_EVENTS, MOST_SECONDS = 150, 2.0


def killed(command: Callable[[], object], folder: Path, draw: random.Random) -> bool:
    """Whether it came to that before the command's end. The child has this process' modules, so it starts at once."""
    at = draw.randrange(1, MOST_EVENTS) if draw.random() < 0.7 else None
    seconds = 60.0 if at else draw.uniform(0, MOST_SECONDS)
    child = os.fork()
    if child == 0:
        _silently(command, folder, at)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, how = os.waitpid(child, os.WNOHANG)
        if done:
            return os.WIFSIGNALED(how)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _silently(command: Callable[[], object], folder: Path, at: int | None) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    seen = 0

    def count(event: str, given: tuple[object, ...]) -> None:
        nonlocal seen
        if event == "ctypes.dlsym" or (event in EVENTS and str(given[0]).startswith((str(folder), *map(str, BELOW)))):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)

    if at is not None:
        sys.addaudithook(count)
    try:
        command()
    finally:
        os._exit(0)


BELOW = ("run", "outputs")  # as a command names its folder relative to where it runs
