"""What a process lets torch do to arithmetic: exactly what was asked for, unless a kernel's knobs say otherwise."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from accuracy.core.errors import ConfigError


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


def make_exact() -> None:
    """No TF32, no reduced-precision reductions, nowhere in this process; kernels opt in one call at a time. The
    CPU's functions are settled."""
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


@cache  # a process's functions stay settled
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
