"""Tensors to disk beside the training step: a copy is taken on the device's own stream, a thread writes the file.

A file is whole or not there: it gets its name when it is written. What cannot be written is one warning, and the
training goes on.
"""

import atexit
import queue
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from accuracy.core.errors import one_line
from accuracy.core.recording import Facts
from accuracy.live.mask import in_words

WAITING = 256  # files at most; then the step waits
_jobs: "queue.Queue[tuple[Path, Facts, dict[str, Copied]]]" = queue.Queue(WAITING)
_thread: threading.Thread | None = None
_streams: dict[torch.device, torch.cuda.Stream] = {}


class Copied:
    """A tensor's values as they were when this was made, contiguous on the CPU once `values` is asked for."""

    def __init__(self, x: Tensor) -> None:
        x = x.detach()
        self._ready: torch.cuda.Event | None = None
        if not x.is_cuda:
            self._values = x.clone(memory_format=torch.contiguous_format)
            return
        stream = _streams.setdefault(x.device, torch.cuda.Stream(x.device))
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            self._source = x.contiguous()
            self._values = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            self._values.copy_(self._source, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record(stream)
        x.record_stream(stream)

    def values(self) -> Tensor:
        """On the CPU; waits for the copy."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._values


def write(folder: Path, facts: Facts, tensors: dict[str, Copied]) -> None:
    """Hand over; returns at once unless many are waiting."""
    global _thread
    if _thread is None:
        _thread = threading.Thread(target=_run, name="accuracy-capture", daemon=True)
        _thread.start()
        atexit.register(wait)
    _jobs.put((folder, facts, tensors))


def wait() -> None:
    """Until everything that was handed over is on disk."""
    _jobs.join()


def _run() -> None:
    while True:
        folder, facts, tensors = _jobs.get()
        try:
            _save(folder, facts, {name: x.values() for name, x in tensors.items()})
        except Exception as error:
            warnings.warn(f"accuracy.capture: {facts.file} is not written ({one_line(error)})", stacklevel=1)
        finally:
            _jobs.task_done()


def _save(folder: Path, facts: Facts, tensors: dict[str, Tensor]) -> None:
    if "mask" in tensors:
        facts, mask = in_words(facts, tensors.pop("mask"))
        tensors |= {} if mask is None else {"mask": mask}
    facts = replace(facts, shapes={name: tuple(x.shape) for name, x in tensors.items()})
    part = folder / f"{facts.file}.part"
    save_file({f"{facts.layer}.{name}": x for name, x in tensors.items()}, part, facts.header)
    part.replace(folder / facts.file)
