"""Tensors to disk beside the training step: a copy is taken on the device's own stream, a thread writes the file.

A file is whole or not there: it gets its name when it is written. What cannot be written is one warning, and the
training goes on. A mask tensor that says no more than words do is written as these.
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


def outweighs(mask: Tensor) -> Tensor:
    """Return where what a mask adds leaves nothing of a score: True hides the key."""
    return mask <= torch.finfo(mask.dtype).min / 2


def in_words(facts: Facts, mask: Tensor) -> tuple[Facts, Tensor | None]:
    """A mask tensor that says no more than `causal` and `window` do, as these, and no tensor; any other as it is, bool
    where nothing but hiding is added. Rows that see no key are what words cannot say, and a row that stands for all."""
    hidden = mask.logical_not() if facts.mask == "seen" else outweighs(mask)
    plain = facts.mask == "seen" or bool(mask.masked_fill(hidden, 0).eq(0).all())
    if not plain or bool(hidden.all(-1).any()) or facts.causal:
        return facts, mask
    seen, facts = ~hidden, replace(facts, mask="seen")
    queries, keys = seen.shape[-2:]
    if (queries, keys) != (facts.shapes["q"][1], facts.shapes["k"][1]):
        return facts, seen
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    first = seen[0, 0]
    left, right = (int((sign * distance)[first].max()) for sign in (1, -1))
    if not torch.equal(seen, ((distance <= left) & (distance >= -right)).expand_as(seen)):
        return facts, seen
    far, ahead = left >= int(distance.max()), right >= int((-distance).max())
    causal = right == 0 and queries > 1
    window = None if far and (ahead or causal) else (None if far else left, None if ahead else right)
    return replace(facts, mask="", causal=causal, top_left=False, window=window), None
