"""What a process lets torch do to arithmetic: exactly what was asked for, unless a kernel's knobs say otherwise.

What a user's function sets in this process is undone: neither the caller nor the next case finds it changed.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import torch

from accuracy.core.errors import ConfigError

T = TypeVar("T")

BACKENDS = (
    "", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn",
)  # fmt: skip
"""Of `torch.backends`: what has an `fp32_precision`, since torch 2.9; "none" is that of the one above."""


@dataclass(frozen=True)
class Switches:
    """What a process lets torch do to arithmetic. The defaults: exactly what was asked for.

    The first three are torch's older interface, which refuses to be read where the newer one, `fp32_precision` by
    backend, was set apart from it: then they are torch's defaults.
    """

    tf32_products: bool = False
    tf32_convolutions: bool = False
    float32_products: str = "highest"
    reduced_bfloat16_sums: bool = False
    reduced_float16_sums: bool = False
    reduced_attention_sums: bool = False
    fp32_precision: tuple[str, ...] = ("ieee",) * len(BACKENDS)


def switches() -> Switches:
    """As they stand in this process."""
    matmul = torch.backends.cuda.matmul
    return Switches(
        _read(lambda: matmul.allow_tf32, False),
        _read(lambda: torch.backends.cudnn.allow_tf32, True),
        _read(torch.get_float32_matmul_precision, "highest"),
        bool(matmul.allow_bf16_reduced_precision_reduction),
        bool(matmul.allow_fp16_reduced_precision_reduction),
        bool(torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()),
        tuple(getattr(_backend(name), "fp32_precision", "ieee") for name in BACKENDS),
    )


def _read(get: Callable[[], T], otherwise: T) -> T:
    try:
        return get()
    except RuntimeError:
        return otherwise


def _backend(name: str) -> Any:
    """None where this torch has none."""
    found: Any = torch.backends
    for part in filter(None, name.split(".")):
        found = getattr(found, part, None)
    return found


def set_switches(given: Switches) -> None:
    """Set all of them for this process: the older interface first, as it sets some of the newer one."""
    torch.set_float32_matmul_precision(given.float32_products)
    torch.backends.cuda.matmul.allow_tf32 = given.tf32_products
    torch.backends.cudnn.allow_tf32 = given.tf32_convolutions
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = given.reduced_bfloat16_sums
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = given.reduced_float16_sums
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(given.reduced_attention_sums)
    for name, precision in zip(BACKENDS, given.fp32_precision, strict=True):
        backend = _backend(name)
        if hasattr(backend, "fp32_precision") and backend.fp32_precision != precision:
            backend.fp32_precision = "none"
            if backend.fp32_precision != precision:  # not what the one above has
                backend.fp32_precision = precision


@contextmanager
def switched(tf32_products: bool = False, reduced_attention_sums: bool = False) -> Iterator[None]:
    """What a kernel's knobs say of these two, whatever the process had, and back again."""
    cuda = torch.backends.cuda
    before = cuda.matmul.allow_tf32, cuda.fp16_bf16_reduction_math_sdp_allowed()
    try:
        cuda.matmul.allow_tf32 = tf32_products
        cuda.allow_fp16_bf16_reduction_math_sdp(reduced_attention_sums)
        yield
    finally:
        cuda.matmul.allow_tf32 = before[0]
        cuda.allow_fp16_bf16_reduction_math_sdp(before[1])


@contextmanager
def deterministic(wanted: bool, warn_only: bool = False) -> Iterator[None]:
    """torch's switch of deterministic algorithms, in the body alone. warn_only: preferred, not required."""
    before = torch.get_deterministic_debug_mode()
    # not use_deterministic_algorithms: that imports torch's compiler, 2 s, to tell it too
    torch.set_deterministic_debug_mode((1 if warn_only else 2) if wanted else 0)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def make_exact() -> None:
    """No TF32, no reduced-precision sums in this process, the CPU's functions settled; kernels opt in call by call."""
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "1":
        raise ConfigError("NVIDIA_TF32_OVERRIDE=1 forces TF32 on every product; unset it")
    set_switches(Switches())
    _settle_functions()


@contextmanager
def exact() -> Iterator[None]:
    """`make_exact` in the body; then all is as it was."""
    before = switches()
    make_exact()
    try:
        yield
    finally:
        set_switches(before)


_of_functions: Switches | None = None


@contextmanager
def functions_with(given: Switches | None) -> Iterator[None]:
    """In the body users' functions run with these switches, while all else is exact; None: they run exactly, too."""
    global _of_functions
    before, _of_functions = _of_functions, given
    try:
        yield
    finally:
        _of_functions = before


def functions_run_with() -> Switches | None:
    """Return what `functions_with` was given."""
    return _of_functions


LIMITS, MORE = ("recompile_limit", "accumulated_recompile_limit"), 10**6


@contextmanager
def recompiled() -> Iterator[None]:
    """The body may compile for as many shapes as it meets, and leaves the process as many recompilations as it had:
    what torch.compile compiled stays, so its limits rise by as much. Beyond them torch runs a function eager."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    config, frames = torch._dynamo.config, torch._dynamo.utils.counters["frames"]
    before, limits = frames["total"], {name: getattr(config, name) for name in LIMITS}
    try:
        with config.patch({name: limit + MORE for name, limit in limits.items()}):
            yield
    finally:
        for name, limit in limits.items():
            setattr(config, name, limit + frames["total"] - before)


@contextmanager
def of_functions() -> Iterator[None]:
    """The body, a call of a user's function, runs with the switches that `functions_with` was given."""
    before = switches()
    if _of_functions is not None:
        set_switches(_of_functions)
    try:
        with recompiled():
            yield
    finally:
        if _of_functions is not None:
            set_switches(before)


@cache  # a process's functions stay settled
def _settle_functions() -> None:
    """MKL looks for a function's code at its first call. Threads that make it at once can get one of half the digits,
    for that call (pytorch #188792; torch 2.13 on two threads, in up to 14 processes of 60: exp was off by 1.5e-4 in
    float32 and by 3e-9 in float64). A single element is one thread's."""
    for dtype in (torch.float32, torch.float64):
        for name in FUNCTIONS:
            getattr(torch, name)(torch.ones(1, dtype=dtype))


FUNCTIONS = (  # those that torch hands to MKL, and their kin
    "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "lgamma", "log", "log10",
    "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


@contextmanager
def computing_with(threads: int, device: str) -> Iterator[None]:
    """So many threads in this process where its processor is what computes: there, last digits depend on them."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads if device == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _folder() -> str:
    """ "" where the current folder is gone."""
    with suppress(OSError):
        return os.getcwd()
    return ""


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(values: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(values[0], warn_only=values[1])  # Inductor's setting too


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (
        torch.get_default_device, lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "whether gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (_deterministic, _set_deterministic),
    **{
        f"autocast on {device}": (
            partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device),
        )
        for device in ("cpu", "cuda")
    },
    **{
        f"torch's attention backend {name}": (
            getattr(torch.backends.cuda, f"{name}_sdp_enabled"), getattr(torch.backends.cuda, f"enable_{name}_sdp"),
        )
        for name in ("flash", "mem_efficient", "math", "cudnn")
    },
    "TF32 and reduced sums": (switches, set_switches),
    "the current folder": (_folder, lambda folder: os.chdir(folder) if folder else None),
}  # fmt: skip
"""How each of torch's settings that change numbers, and the current folder, is read and set."""


@contextmanager
def settings_restored() -> Iterator[None]:
    """`SETTINGS` are afterwards as before."""
    before = [get() for get, _ in SETTINGS.values()]
    try:
        yield
    finally:
        for (get, put), value in zip(SETTINGS.values(), before, strict=True):
            if get() != value:
                put(value)


@contextmanager
def random_state_restored() -> Iterator[None]:
    """The states of torch's, numpy's and Python's generators are afterwards as before."""
    numpys, pythons = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):
        try:
            yield
        finally:
            np.random.set_state(numpys)
            random.setstate(pythons)
