"""Under torchrun, srun or submitit each launched process is a parent that writes into the run folder how its child, a
rank, died.
"""

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

from accuracy.cli import internal
from accuracy.execute.start import Launch, launch

_told: IO[str] | None = None  # by the child: the time limit of a case and the run folder


def as_rank(work: Callable[[Launch | None], int]) -> int:
    """Exit status of `work`, told how the process was launched: None where it was started alone."""
    global _told
    started = launch(os.environ)
    if started is None or _told is not None:
        return work(started)
    _told = os.fdopen(os.memfd_create("accuracy"), "w+")
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _end_with(parent)
        if started.rank > 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process says what there is to say
        status = 1
        try:
            status = work(started)
        except Exception as error:
            status = internal("accuracy", error)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child's to handle
    return _watch(child, started)


def speaks() -> bool:
    """Whether this process is the one of a launch that talks to the user."""
    started = launch(os.environ)
    return started is None or started.rank == 0


def tell(folder: Path, seconds: float) -> None:
    """In the child: from now on its end is an event of a run. seconds: the time limit of a case."""
    if _told is not None:
        _told.write(f"{seconds} {folder.resolve()}")
        _told.flush()


def tell_done() -> None:
    """In the child: its part in the run is over."""
    if _told is not None:
        _told.truncate(0)


def _watch(child: int, started: Launch) -> int:
    from accuracy.execute.ranks import journal

    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert _told is not None
    _told.seek(0)
    seconds, _, folder = _told.read().partition(" ")
    if not folder and code >= 0:
        return code
    if not folder:
        print(f"accuracy: rank {started.rank} was killed by signal {-code} before its first case", file=sys.stderr)
    elif Path(folder).is_dir() and (how := journal.note_end(Path(folder), started.rank, code, float(seconds))):
        print(f"accuracy: {how}; what was measured stays, and the same command goes on", file=sys.stderr)
    return journal.LOST


def _end_with(parent: int) -> None:
    """This process is killed when its parent ends, however that happens (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
