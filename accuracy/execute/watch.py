"""How long may a case take? A limit for every case, and a watch over the case that this process measures itself.

A case that takes longer is a failed row with the reason, and the run goes on. Python code is interrupted by an
exception. Code that does not return to Python (a GPU kernel without an end) cannot be: the watching thread ends the
process, and another one goes on (`attend.py`). Where no other Python thread runs either, the attending process does it;
in a program of the caller's own, which nobody attends, such code is not ended.
"""

import ctypes
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from accuracy.core.case import Case

HOUR = 3600.0
SLOWEST = {"cpu": 1e8, "cuda": 1e10}
"""Operations a second: a thousandth of what a core makes of float64 products (1e11), or a GPU without many float64
units (1e13 in float32). With the hour on top no healthy case of a sound machine comes near its limit."""
GRACE_SECONDS = 10
"""From the first interrupt, one a second, to the end of the process."""


class TookTooLong(BaseException):
    """No Exception: whoever catches those goes on with what hangs."""


def limit(case: Case, case_seconds: float) -> float:
    """Seconds that a case may take. case_seconds: as configured; infinite: an hour, and more for large cases."""
    return case_seconds if case_seconds < math.inf else HOUR + _operations(case) / SLOWEST[case.device]


def reason(seconds: float, case_seconds: float) -> str:
    """Why a case has no numbers. case_seconds: as configured."""
    return f"took longer than {said(seconds, case_seconds)}"


def said(seconds: float, case_seconds: float) -> str:
    """The limit, and how it is set."""
    if case_seconds < math.inf:
        return f"case_seconds={case_seconds:g}"
    return f"{seconds:.0f} s, the limit of its size; case_seconds=SECONDS sets another"


def _operations(case: Case) -> float:
    """Of a forward (two products) and a backward (five), for each that is run or computed."""
    problem, reruns = case.problem, case.reruns
    again = reruns.poison + 2 * case.world_size * reruns.unwaited + reruns.future + reruns.trace
    runs = 3 + reruns.repeat + again + 3 * case.conditions
    layers, dense = 1, 0
    if case.stack is not None:
        layers, width = case.stack.layers, case.stack.width
        across = 2 * (problem.heads + problem.heads_kv) * problem.head_dim + 3 * case.stack.feed_forward
        dense = 6 * problem.batch * problem.seqlen * width * (layers * across + 2 * case.stack.vocabulary)
    return float(runs * (layers * 14 * problem.pairs * problem.head_dim + dense))


@contextmanager
def watched(seconds: float, give_up: Callable[[], object]) -> Iterator[None]:
    """Raises TookTooLong in the body when it takes longer, and again each second; at last calls `give_up`, in another
    thread, which does not return."""
    over, sending = threading.Event(), threading.Lock()
    here, in_main = threading.get_ident(), threading.current_thread() is threading.main_thread()

    def interrupt(*_: object) -> None:
        if not over.is_set():
            raise TookTooLong

    def watch() -> None:
        if over.wait(min(seconds, threading.TIMEOUT_MAX)):
            return
        for _ in range(GRACE_SECONDS):
            with sending:
                if over.is_set():
                    return
                if in_main:
                    signal.pthread_kill(here, signal.SIGVTALRM)
                else:
                    _raise_in(here, TookTooLong)
            if over.wait(1.0):
                return
        give_up()

    before = signal.signal(signal.SIGVTALRM, interrupt) if in_main else None
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        try:
            over.set()
        finally:
            over.set()  # an interrupt may have come before the first
        with sending:  # no further interrupt is sent
            if not in_main:
                _raise_in(here, None)
        if callable(before):  # else the handler stays, and does nothing: an interrupt on its way would end the process
            signal.signal(signal.SIGVTALRM, before)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """At the thread's next line of Python; None: no longer."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error and ctypes.py_object(error))
