"""A worker process measures one case after another on its device and stores each case's rows itself."""

import ctypes
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import torch

from accuracy.core import closure
from accuracy.core.case import Case
from accuracy.execute import start_method
from accuracy.measurement.pipeline import Measured, Pipeline
from accuracy.results import table, writing
from accuracy.runtime import arithmetic


@dataclass(frozen=True)
class Work:
    """What every worker is to do. pipeline: with what is kept from case to case still empty; folder: of the run; gpus:
    one worker each, None is the CPU; threads: of a worker's CPU work; case_seconds: that a case may take, as
    configured; imports: of source files, found before."""

    pipeline: Pipeline
    folder: Path
    gpus: Sequence[int | None]
    threads: int
    case_seconds: float = math.inf
    imports: closure.Imports = field(default_factory=closure.known)

    @property
    def gpus_are_shared(self) -> bool:
        """Whether a GPU has several workers, each of which waits for the others' kernels."""
        own = [gpu for gpu in self.gpus if gpu is not None]
        return len(own) > len({*own})


def write(folder: Path, case: Case, measured: Measured) -> str:
    """Store a case's rows; its status."""
    if measured.traceback:
        writing.write_traceback(folder, case.id, measured.traceback)
    tables = [measured.table(name) for name in ("steps", "hypotheses", "boundaries", "places", "logprobs")]
    writing.write_case(folder, case.id, measured.results, measured.positions, *tables)
    return measured.status


_work: Work
_gpu: int | None


def prepare(gpu: int | None) -> None:
    """Called once in each worker process, which may start before there is work."""
    global _gpu
    _gpu = gpu
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # the process that hands out cases hears of it too, and ends this one
    end_with_parent(1)
    start_method.collect()
    arithmetic.make_exact()
    if gpu is not None:
        opening = threading.Thread(target=_open, args=(gpu,))
        opening.start()
        _import_for_first_case()
        opening.join()
        torch.cuda.set_device(gpu)
        torch.cuda.synchronize()  # fails here where the GPU cannot be had


def _open(gpu: int) -> None:
    """The driver opens a GPU for one process after another, 0.3 s each. torch would let no other Python code run."""
    with suppress(OSError):  # torch says it better
        driver, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        driver.cuInit(0)
        if driver.cuDeviceGet(ctypes.byref(device), gpu) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), device)


FIRST_CALLS = (
    "accuracy.reference.fused_kernels", "triton.experimental.gluon.nvidia.hopper", "flash_attn.flash_attn_interface",
)  # fmt: skip
"""What Triton and flash-attn import when they are first called."""


def _import_for_first_case() -> None:
    for name in FIRST_CALLS:
        with suppress(Exception):  # whatever a package raises, a case that calls it says
            import_module(name)
    with suppress(Exception):
        import_module("triton.runtime.cache").triton_key()  # reads all of Triton; kept


def end_with_parent(status: int) -> None:
    """Let this process exit with the status once the process that started it is gone."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(status)

    threading.Thread(target=wait, daemon=True).start()


def accept(work: Work) -> None:
    """Answered once the process is prepared. Called before the first case."""
    global _work
    _work = work
    closure.learn(work.imports)
    torch.set_num_threads(work.threads)


def measure(case: Case) -> tuple[str, bool]:
    """The case's status, its rows on disk, and whether the process can measure more cases."""
    measured = _work.pipeline.measure(case)
    if _work.gpus_are_shared:
        kept = {name: values for name, values in measured.results.items() if name != "seconds"}
        measured = replace(measured, results=kept)
    status = write(_work.folder, case, measured)
    return status, status != table.FAILED or device_works("cpu" if _gpu is None else "cuda")


def device_works(device: str) -> bool:
    """After an illegal address CUDA refuses all further work of the process."""
    try:
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True
