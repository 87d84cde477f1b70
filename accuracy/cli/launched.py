"""Under torchrun, srun or submitit each launched process is a parent that writes into the run folder how its child, a
rank, died.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from accuracy.cli import internal
from accuracy.execute import leftovers, start
from accuracy.execute.start import Launch, Limit, launch

POLL_SECONDS = 0.1
GRACE_SECONDS = 0.5
"""After a limit, so that a stopped rank is named before those that wait for it; then for all of these to be named."""
MOST_BYTES = 2**13
_told: int | None = None  # a memfd into which the child writes the run folder and its limit
_folder = ""


def as_rank(work: Callable[[Launch | None], int]) -> int:
    """Exit status of `work`, told how the process was launched: None where it was started alone."""
    global _told
    started = launch(os.environ)
    if started is None or _told is not None:
        return work(started)
    _told = os.memfd_create("accuracy")
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _end_with(parent)
        start.tell_limit = _tell
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


def tell(folder: Path | None) -> None:
    """In the child: let its end be recorded in this folder; None: no more."""
    global _folder
    _folder = str(folder.resolve()) if folder else ""
    _tell(Limit())


def _tell(limit: Limit) -> None:
    if _told is not None:
        os.pwrite(_told, json.dumps([_folder, *limit]).encode().ljust(MOST_BYTES), 0)


def _told_now() -> tuple[str, Limit]:
    assert _told is not None
    folder, *limit = json.loads(os.pread(_told, MOST_BYTES, 0) or '[""]')
    return folder, Limit(*limit)


def _watch(child: int, started: Launch) -> int:
    from accuracy.execute.ranks import journal

    late = ""
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(POLL_SECONDS)
        grace = 0.0 if leftovers.stat(child)[0] == "T" else GRACE_SECONDS
        with suppress(ValueError):  # read while the child writes
            limit = _told_now()[1]
            if not late and time.monotonic() > limit.deadline + grace:
                late = limit.reason or journal.no_answer({started.rank: child}, limit.seconds)
                os.kill(child, signal.SIGKILL)
    code, folder = os.waitstatus_to_exitcode(ended[1]), ""
    with suppress(ValueError):  # killed while it wrote
        folder = _told_now()[0]
    if not folder and code >= 0:
        return code
    if not folder:
        how = late or f"rank {started.rank} was killed by signal {-code}"
        print(f"accuracy: {how} before its first case", file=sys.stderr)
        return journal.LOST
    if late:
        journal.note(Path(folder), "final", late)
    elif Path(folder).is_dir():
        late = journal.note_end(Path(folder), started.rank, code) or ""
    if late:
        print(f"accuracy: {late}; what was measured stays, and the same command goes on", file=sys.stderr)
        time.sleep(GRACE_SECONDS)
    return journal.LOST


def _end_with(parent: int) -> None:
    """This process is killed when its parent ends, however that happens (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
