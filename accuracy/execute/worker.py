"""Measure a case and write its rows within a time limit: in a worker process, or in the process that was called."""

import faulthandler
import gc
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from accuracy.core import own_process, plugins
from accuracy.core.case import Case
from accuracy.core.errors import located, traceback_of
from accuracy.execute import start
from accuracy.execute.plan import Planned, measured
from accuracy.measurement.pipeline import Measured, Pipeline
from accuracy.results import storage, table
from accuracy.runtime import arithmetic
from accuracy.runtime.changes import Changes, told

HOUR = 3600.0
SLOWEST = {"cpu": 1e8, "cuda": 1e10}
"""Operations a second: a thousandth of what a core reaches in float64 products (1e11), and a weak GPU in float32
(1e13). With the hour on top no healthy case of a sound machine comes near its limit."""


@dataclass(frozen=True)
class Work:
    """What every worker does.

    Attributes:
        pipeline: measures a case; what it keeps from case to case is still empty.
        folder: of the run.
        gpus: the device of each worker, None is the CPU.
        threads: of the processor, in each worker.
        case_seconds: that a case may take, as configured; infinite: the limit of its size.
    """

    pipeline: Pipeline
    folder: Path
    gpus: Sequence[int | None]
    threads: int
    case_seconds: float = math.inf

    @property
    def gpus_are_shared(self) -> bool:
        """Return whether a GPU has several workers, each of which waits for the others' kernels."""
        used = [gpu for gpu in self.gpus if gpu is not None]
        return len(used) > len({*used})


def seconds_allowed(case: Case, case_seconds: float) -> float:
    """Return the seconds that a case may take. case_seconds: as configured; infinite: an hour, and more for large
    cases."""
    if case_seconds < math.inf:
        return case_seconds
    runs = 3
    for part in case.observers:
        observer = plugins.load(part.source)
        of_case = getattr(observer, "runs", None)
        runs += of_case(case, plugins.build_options(observer, part.options)) if of_case else 1
    # forwards have two products each, backwards five
    return HOUR + runs * 14 * case.problem.pairs * case.problem.head_dim / SLOWEST[case.device]


def seconds_text(case: Case, case_seconds: float) -> str:
    """Return the limit of a case in words, and how it is set."""
    if case_seconds < math.inf:
        return f"case_seconds={case_seconds:g}"
    return f"{seconds_allowed(case, case_seconds):.0f} s, the limit of its size; case_seconds=SECONDS sets another"


def write(folder: Path, case: Case, measured: Measured) -> str:
    """Store the rows of a case; return its status."""
    if measured.traceback:
        storage.write_traceback(folder, case.id, measured.traceback)
    storage.write_case(folder, case.id, measured.results, {"positions": measured.positions, **measured.tables})
    return measured.status


def device_works(device: str) -> bool:
    """Return whether this process can go on: after an illegal address CUDA refuses all further work."""
    try:
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True


def serve(connection: Connection, gpu: int | None, work: Work, environment: dict[str, str], stacks: Path) -> None:
    """Measure the cases that come through a connection, until the process is killed. What is answered: None, once the
    device is open; then for each case its status, and whether the process can measure more; an OSError where its rows
    cannot be written. stacks: the folder of `stack_file`."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # the process that hands out cases hears of it too, and ends this one
    start.end_with_parent(1)
    gc.freeze()
    os.environ.update(environment)
    own_process.begin()
    arithmetic.make_exact()
    torch.set_num_threads(work.threads)
    if gpu is not None:
        torch.cuda.set_device(gpu)
        torch.cuda.synchronize()  # it fails here where the GPU cannot be had
    before = Changes()
    connection.send(None)
    while True:
        try:
            connection.send(_measured(work, connection.recv(), gpu, before, stacks))
        except EOFError:
            return
        except OSError as error:  # of a file that cannot be written
            connection.send(error)


def stack_file(stacks: Path, pid: int) -> Path:
    """Return the file into which a worker writes where it is, once its case has reached its limit."""
    return stacks / f"stack.{pid}"


def _measured(work: Work, case: Case, gpu: int | None, before: Changes, stacks: Path) -> tuple[str, bool]:
    with open(stack_file(stacks, os.getpid()), "w") as stack:
        seconds = min(seconds_allowed(case, work.case_seconds), threading.TIMEOUT_MAX)
        faulthandler.dump_traceback_later(seconds, file=stack)
        found = work.pipeline.measure(case)
        own_process.end_if_forked()
        faulthandler.cancel_dump_traceback_later()
    if work.gpus_are_shared:
        timeless = {name: values for name, values in found.results.items() if name != "seconds"}
        found = replace(found, results=timeless)
    changed = before.names()
    before.undo()  # what writes the rows may be among it
    status = write(work.folder, case, found)
    if changed:
        tell_changes(case, changed)
        return status, False
    return status, status != table.FAILED or device_works("cpu" if gpu is None else "cuda")


def tell_changes(case: Case, changed: list[str]) -> None:
    """Say on the terminal what a case changed that others would feel."""
    what = f"accuracy: {case.variant.name} (case {case.id}) changed {told(changed)}"
    print(f"{what}; further cases have a new process", file=sys.stderr, flush=True)


class TookTooLong(BaseException):
    """A case of this process has reached its limit. It is no Exception, which a user's function may catch."""


def measure_here(pipeline: Pipeline, each: Planned, folder: Path, case_seconds: float) -> str:
    """Measure a case in this process, and store its rows; return its status.

    Python code in the main thread that takes longer than the case may is interrupted, every second from then on. A
    sooner alarm of the caller's stays, and ends the call.
    """
    case, over = each.case, threading.Event()
    seconds, alarm = seconds_allowed(case, case_seconds), signal.getitimer(signal.ITIMER_REAL)
    limited = threading.current_thread() is threading.main_thread() and not 0 < alarm[0] <= seconds

    def interrupt(*_: object) -> None:
        if not over.is_set():
            raise TookTooLong

    began, changes = time.monotonic(), Changes()
    if limited:
        before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            if limited:
                signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            found = measured(pipeline, each)
        finally:
            over.set()
    except TookTooLong as error:
        position = located(error).removeprefix("TookTooLong:").strip()
        reason = f"took longer than {seconds_text(case, case_seconds)} {position}".rstrip()
        found = replace(pipeline.failed(case, reason), traceback=traceback_of(error))
    finally:
        if limited:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            rest = alarm[0] and max(alarm[0] - (time.monotonic() - began), 1e-6)
            signal.setitimer(signal.ITIMER_REAL, rest, alarm[1])
    if changed := changes.names():
        changes.undo()
        left = changes.names()
        then = f"{told(left)} cannot be put back" if left else "it was put back"
        warnings.warn(f"{case.variant.name} changed {told(changed)}; {then}", stacklevel=2)
    return write(folder, case, found)
