"""Is this process one that measures cases and does nothing else? Then whatever is raised in it, a function raised."""

import multiprocessing
import os

_process = 0


def begin() -> None:
    """Learn that this process, a worker or a rank, is one: nobody stops it by an exception. To functions it is as one
    that a shell started: its server of processes is not theirs, and no lock of theirs outlives it."""
    global _process
    _process = os.getpid()
    multiprocessing.set_start_method(None, force=True)


def is_one() -> bool:
    """Return whether it is."""
    return _process != 0


def raised_by_functions() -> tuple[type[BaseException], ...]:
    """Return what a user's function may raise so that its case fails. Where the process is the user's own,
    KeyboardInterrupt and the like are meant for it; some packages call exit()."""
    return (BaseException,) if _process else (Exception, SystemExit)


def end_if_forked() -> None:
    """End this process where a user's function made it by a fork, and came back in it, too."""
    if _process not in (0, os.getpid()):
        os._exit(0)
