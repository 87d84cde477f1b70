"""The device of a run: which one, its name, its free memory, and what work on it took."""

import ctypes
import platform
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accuracy.core.errors import ConfigError, unknown
from accuracy.runtime.arithmetic import deterministic


def choose(word: str) -> str:
    """`cpu` or `cuda` for `auto`, `cpu` or `cuda`. Raises ConfigError."""
    if word not in ("auto", "cpu", "cuda"):
        raise unknown("device", word, ("auto", "cpu", "cuda"))
    available = torch.cuda.is_available()
    if word == "cuda" and not available:
        raise ConfigError("device=cuda, but torch sees no CUDA device; use device=cpu or device=auto")
    return ("cuda" if available else "cpu") if word == "auto" else word


def move(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
    """Tensors of one dtype and device on another, by one transfer."""
    flat = torch.cat([x.detach().flatten() for x in tensors]).to(device)
    parts = flat.split([x.numel() for x in tensors])
    return [part.view(x.shape) for x, part in zip(tensors, parts, strict=True)]


@cache
def name(device: str) -> str:
    """The hardware's name: the GPU's, or the CPU's model and architecture."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    about = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search("^model name.*?:(.*)", about, re.MULTILINE)
    return (model[1].strip() if model else "") or platform.processor() or platform.machine()


def alike() -> tuple[int, ...]:
    """The GPUs that torch sees and that are of the first one's model: rows of another do not belong in one table."""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return tuple(index for index, each in enumerate(names) if each == names[0])


def free_bytes(device: str) -> int | None:
    """Memory that can still be taken; None where the system does not say."""
    if device == "cuda":
        try:  # as the driver says, which does not open the GPU for this process; torch opens it, 0.3 s and more
            return int(torch.cuda.get_device_properties().total_memory - torch.cuda.device_memory_used())
        except Exception:  # no nvidia-ml-py, or what it raises of a part of a GPU
            return int(torch.cuda.mem_get_info()[0])
    known = [_status_bytes("/proc/meminfo", "MemAvailable")]
    with suppress(OSError, ValueError):  # what a container's memory limit leaves (control groups, version 2)
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{each}").read_text()) for each in ("max", "current"))
        known.append(limit - used)
    return min((each for each in known if each is not None), default=None)


@dataclass
class Cost:
    """What a stretch of work took: seconds, and bytes at its peak above what was held before (None: unknown)."""

    seconds: float = 0.0
    peak_bytes: int | None = None


@contextmanager
def measured(device: str) -> Iterator[Cost]:
    """Time and peak memory of the body. CUDA: allocated bytes; CPU: growth of the resident set."""
    cost = Cost()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before: int | None = torch.cuda.memory_allocated()
    else:
        before = None
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # freed memory goes back first: reusing it would not show as growth
            Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak of the resident set starts anew
            before = _status_bytes("/proc/self/status", "VmRSS")
    begin = time.perf_counter()
    yield cost
    if device == "cuda":
        torch.cuda.synchronize()
    cost.seconds = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else _status_bytes("/proc/self/status", "VmHWM")
    cost.peak_bytes = None if before is None or peak is None else max(0, peak - before)


@contextmanager
def poisoned(wanted: bool) -> Iterator[None]:
    """Memory that torch takes in the body comes full of NaN, also inside its operators. torch ties this to its
    deterministic algorithms, which are preferred in the body, not required."""
    if not wanted:
        yield
        return
    filling: Any = torch.utils.deterministic
    filled = filling.fill_uninitialized_memory
    with warnings.catch_warnings(), deterministic(True, warn_only=True):
        warnings.simplefilter("ignore", UserWarning)  # one for each operator that has no deterministic form
        filling.fill_uninitialized_memory = True
        try:
            yield
        finally:
            filling.fill_uninitialized_memory = filled


def _status_bytes(path: str, key: str) -> int | None:
    try:
        found = re.search(rf"^{key}:\s*(\d+)", Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
