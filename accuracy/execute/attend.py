"""The process that a user starts attends the one that measures, and starts another when that one is gone.

A run whose cases get no worker of their own measures them in one process. A case that ends it (a segmentation fault,
an `exit`), or that hangs where no other Python code runs either, is a failed row with the reason, written by the next
process, which goes on with the cases left. Only the standard library is loaded here: the attending process stays small.
"""

import atexit
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

ANEW = 75
"""Exit status of a process that another one is to follow (EX_TEMPFAIL)."""
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)
ONE_INTERRUPT_SECONDS = 1.0
"""Ctrl-C reaches both processes, and the first passes it on: within this time the second is the same one."""
PAGE = 4096

_file: int | None = None  # what the measuring process has in hand, as JSON; None: nobody attends
_lost: dict[str, str] = {}
_heard = -ONE_INTERRUPT_SECONDS  # the last interrupt, in monotonic seconds
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
asked = threading.Event()
"""An interrupt was raised and is not dealt with: libraries that clear errors may have lost it."""


def attended(work: Callable[[], int]) -> int:
    """Exit status of `work`, done by a process of its own; by another one as often as a case ends it. Not on macOS,
    which lacks what this takes: there `work` is done here."""
    global _file
    if not hasattr(os, "memfd_create"):
        return work()
    _file = os.memfd_create("accuracy")
    while True:
        os.pwrite(_file, b" " * PAGE, 0)
        sys.stdout.flush()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _begin(parent)
            _leave(work())
        code, late = _end(child)
        if not _lose(code, late):
            return _same_end(code)


def lost(case_id: str) -> str | None:
    """Why an earlier process of this command is gone because of the case."""
    return _lost.get(case_id)


@contextmanager
def in_hand(case_id: str, seconds: float, reason: str) -> Iterator[None]:
    """While the body runs this process may be ended because of the case, after so many seconds for that reason."""
    _tell(case_id, time.monotonic() + seconds, reason)
    try:
        yield
    finally:
        if _file is not None:
            os.pwrite(_file, b" " * PAGE, 0)


def let_another_go_on(case_id: str, reason: str) -> None:
    """End this process, which the case left in no state to measure; the next one writes the case's row. Returns where
    nobody attends it."""
    if _file is not None:
        _tell(case_id, 0.0, reason)
        sys.stdout.flush()
        os._exit(ANEW)


def _tell(case_id: str, until: float, reason: str) -> None:
    if _file is not None:
        told = {"case": case_id, "until": until, "reason": reason[: PAGE // 8]}
        os.pwrite(_file, json.dumps(told).encode().ljust(PAGE), 0)


def _begin(parent: int) -> None:
    """In the measuring process: it ends with its parent (Linux), and an interrupt counts once."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, interrupt)


def interrupt(*_: object) -> None:
    """Handler of SIGINT and SIGTERM in the measuring process. Raises KeyboardInterrupt."""
    global _heard
    before, _heard = _heard, time.monotonic()
    if _heard - before >= ONE_INTERRUPT_SECONDS:
        asked.set()
        raise KeyboardInterrupt


def _leave(status: int) -> NoReturn:
    """End this process as Python does, but for taking torch and its libraries apart, piece by piece: up to 1 s."""
    with suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as at every end of a process
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _told() -> dict[str, Any]:
    """The case in hand, until when, and the reason of its end then; empty between two cases."""
    assert _file is not None
    text = os.pread(_file, PAGE, 0).strip()
    return json.loads(text) if text else {}


def _end(child: int) -> tuple[int, bool]:
    """Exit status of the process (negative: a signal), and whether its case had to be ended."""
    late = False
    waited_for = {signal.SIGCHLD, *_PASSED_ON}  # blocked, so that none is lost on the way into the wait
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        while True:
            done, how = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(how), late
            heard = signal.sigtimedwait(waited_for, 1.0)
            if heard is not None and heard.si_signo in _PASSED_ON:
                os.kill(child, heard.si_signo)
            told = _told()
            if told and time.monotonic() > told["until"]:
                late = True
                os.kill(child, signal.SIGKILL)
    finally:
        while signal.sigtimedwait(waited_for, 0) is not None:
            pass  # what came too late to be passed on
        signal.pthread_sigmask(signal.SIG_UNBLOCK, waited_for)


def _lose(code: int, late: bool) -> bool:
    """Whether the process ended because of a case; that is noted then."""
    told = _told()
    if not told or not (late or code >= 0 or -code in CRASHES):
        return False
    how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with status {code}"
    reason = told["reason"] if late or code == ANEW else f"the process that measured it {how}"
    _lost[told["case"]] = reason
    print(f"\naccuracy: case {told['case']}: {reason}; another process goes on", file=sys.stderr, flush=True)
    return True


def _same_end(code: int) -> int:
    """End as the other process did."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
