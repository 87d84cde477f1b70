"""The device of a run: which one, its name, its free memory, and arithmetic that does exactly what it says."""

import ctypes
import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from accuracy.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")


def choose(word: str) -> str:
    """`cpu` or `cuda` for `auto`, `cpu` or `cuda`."""
    available = torch.cuda.is_available()
    if word == "cuda" and not available:
        raise ConfigError("device=cuda, but torch sees no CUDA device; use device=cpu or device=auto")
    return ("cuda" if available else "cpu") if word == "auto" else word


@dataclass(frozen=True)
class Switches:
    """What a process lets torch do to arithmetic. The defaults: exactly what was asked for."""

    tf32_products: bool = False
    tf32_convolutions: bool = False
    reduced_bfloat16_sums: bool = False
    reduced_float16_sums: bool = False
    reduced_attention_sums: bool = False
    float32_products: str = "highest"


def switches() -> Switches:
    """As they stand in this process."""
    matmul = torch.backends.cuda.matmul
    return Switches(
        matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        bool(matmul.allow_bf16_reduced_precision_reduction),
        bool(matmul.allow_fp16_reduced_precision_reduction),
        bool(torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()),
        _float32_products(),
    )


def _float32_products() -> str:
    """torch 2.13 refuses to say where allow_tf32 was set by itself; the other switches then stand as for `highest`."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "highest"


def set_switches(given: Switches) -> None:
    """Set all of them for this process."""
    torch.set_float32_matmul_precision(given.float32_products)
    torch.backends.cuda.matmul.allow_tf32 = given.tf32_products
    torch.backends.cudnn.allow_tf32 = given.tf32_convolutions
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = given.reduced_bfloat16_sums
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = given.reduced_float16_sums
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(given.reduced_attention_sums)


@contextmanager
def switched(tf32_products: bool = False, reduced_attention_sums: bool = False) -> Iterator[None]:
    """What a kernel's knobs say of these two, whatever the process had, and back again."""
    matmul, attention = torch.backends.cuda.matmul, torch.backends.cuda
    before = matmul.allow_tf32, attention.fp16_bf16_reduction_math_sdp_allowed()
    matmul.allow_tf32 = tf32_products
    attention.allow_fp16_bf16_reduction_math_sdp(reduced_attention_sums)
    try:
        yield
    finally:
        matmul.allow_tf32 = before[0]
        attention.allow_fp16_bf16_reduction_math_sdp(before[1])


def make_arithmetic_exact() -> None:
    """No TF32, no reduced-precision reductions, nowhere in this process; kernels opt in one call at a time. The
    CPU's functions are settled."""
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "1":
        raise ConfigError("NVIDIA_TF32_OVERRIDE=1 forces TF32 on every product; unset it")
    set_switches(Switches())
    _settle_functions()


def _settle_functions() -> None:
    """MKL looks for a function's code at its first call. Threads that make it at once can get one of half the digits,
    for that call (pytorch #188792; torch 2.13 on two threads, in up to 14 processes of 60: exp was off by 1.5e-4 in
    float32 and by 3e-9 in float64). A single element is one thread's."""
    for dtype in (torch.float32, torch.float64):
        for name in FUNCTIONS:
            getattr(torch, name)(torch.ones(1, dtype=dtype))


FUNCTIONS = (
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "lgamma", "log", "log10",
    "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
"""Those that torch hands to MKL, and their kin."""


@contextmanager
def computing_with(threads: int, device: str) -> Iterator[None]:
    """So many threads in this process where its processor is what computes: there, last digits depend on them."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads if device == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def name(device: str) -> str:
    """The hardware's name: the GPU's, or the CPU's model and architecture."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()


def count() -> int:
    """How many GPUs torch sees."""
    return int(torch.cuda.device_count())


def alike() -> tuple[int, ...]:
    """The GPUs that torch sees and that are of the first one's model: rows of another do not belong in one table."""
    names = [torch.cuda.get_device_name(index) for index in range(count())]
    return tuple(index for index, each in enumerate(names) if each == names[0])


def free_bytes(device: str) -> int | None:
    """Memory that can still be taken; None where the system does not say."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    known = [each for each in (_status_bytes("/proc/meminfo", "MemAvailable"), _group_bytes()) if each is not None]
    return min(known, default=None)


@dataclass
class Cost:
    """What a stretch of work took: seconds, and bytes at its peak above what was held before (None: unknown)."""

    seconds: float = 0.0
    peak_bytes: int | None = None


@contextmanager
def measured(device: str) -> Iterator[Cost]:
    """Time and peak memory of the body. CUDA: allocated bytes; CPU: growth of the resident set."""
    cost = Cost()
    before = _reset_peak(device)
    begin = time.perf_counter()
    yield cost
    if device == "cuda":
        torch.cuda.synchronize()
    cost.seconds = time.perf_counter() - begin
    peak = _peak(device)
    cost.peak_bytes = None if before is None or peak is None else max(0, peak - before)


@contextmanager
def poisoned(wanted: bool) -> Iterator[None]:
    """Memory that torch takes in the body comes full of NaN, also inside its operators; what reads it before it is
    written, shows. torch ties this to its deterministic algorithms, which are preferred in the body, not required."""
    if not wanted:
        yield
        return
    filling: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        filling.fill_uninitialized_memory,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one for each operator that has no deterministic form
        torch.use_deterministic_algorithms(True, warn_only=True)
        filling.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            filling.fill_uninitialized_memory = before[2]


def _reset_peak(device: str) -> int | None:
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    try:
        ctypes.CDLL(None).malloc_trim(0)  # freed memory goes back first: reusing it would not show as growth
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak of the resident set starts anew
    except (OSError, AttributeError):
        return None
    return _status_bytes("/proc/self/status", "VmRSS")


def _peak(device: str) -> int | None:
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return _status_bytes("/proc/self/status", "VmHWM")


def _group_bytes() -> int | None:
    """What a container's memory limit leaves (control groups, version 2)."""
    try:
        limit, used = (Path(f"/sys/fs/cgroup/memory.{each}").read_text().strip() for each in ("max", "current"))
        return None if limit == "max" else int(limit) - int(used)
    except (OSError, ValueError):
        return None


def _status_bytes(path: str, key: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)
