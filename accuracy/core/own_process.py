"""Is this process one that measures cases and does nothing else? Then whatever is raised in it, a function raised."""

import multiprocessing
import os
import resource
from contextlib import suppress

LIMITS = "AS", "CPU", "DATA", "FSIZE", "NOFILE", "STACK"
Pair = tuple[int, int]
_process = 0
_limits: dict[str, Pair] = {}
lowered: set[str] = set()
"""The limits of this process that were found changed, by their names."""


def begin() -> None:
    """Learn that this process, a worker or a rank, is one: nobody stops it by an exception. To functions it is as one
    that a shell started: its server of processes is not theirs, and no lock of theirs outlives it."""
    global _process
    _process = os.getpid()
    remember_limits()
    multiprocessing.set_start_method(None, force=True)


def is_one() -> bool:
    """Return whether it is."""
    return _process != 0


def raised_by_functions() -> tuple[type[BaseException], ...]:
    """Return what a user's function may raise so that its case fails. Where the process is the user's own,
    KeyboardInterrupt and the like are meant for it; some packages call exit()."""
    return (BaseException,) if _process else (Exception, SystemExit)


def _limit(name: str, process: int = 0, pair: Pair | None = None) -> Pair:
    """Return a limit of a process (0: this one), after setting it where a pair is given. On Linux alone those of others
    are known."""
    number = getattr(resource, f"RLIMIT_{name}")
    if hasattr(resource, "prlimit"):
        return resource.prlimit(process, number, *([pair] if pair else []))
    if pair and not process:
        resource.setrlimit(number, pair)
    return resource.getrlimit(number)


def remember_limits() -> None:
    """Learn what the limits of this process are before a case."""
    _limits.update({name: _limit(name) for name in LIMITS})
    lowered.clear()


def put_limits_back(process: int = 0) -> list[str]:
    """Restore a process's limits to what this one had before a case; return those that only root could. A function may
    lower those of any process of the user; this comes first, as little else works with little memory."""
    stuck = []
    for name, (soft, hard) in _limits.items():
        with suppress(ProcessLookupError):
            now = _limit(name, process)
            if now == (soft, hard):
                continue
            lowered.add(name)
            try:
                _limit(name, process, (soft, hard))
            except (ValueError, OSError):  # only root raises a hard limit
                if resource.RLIM_INFINITY != now[1] < soft % 2**64:
                    stuck.append(name)
                else:
                    _limit(name, process, (soft, now[1]))
    return stuck


def limits_said() -> str:
    """Return what is to be added to the reason of a case that has failed."""
    return "".join(f" (RLIMIT_{name} was changed)" for name in sorted(lowered))


def end_if_forked() -> None:
    """End this process where a user's function made it by a fork, and came back in it, too."""
    if _process not in (0, os.getpid()):
        os._exit(0)
