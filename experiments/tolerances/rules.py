"""The rules by which public tests accept attention, each with its source: `RULES`, by name.

A rule is given what was returned, the exact result and what the rule itself compares with, and says whether a tensor
passes. Numbers are copied from the files named; where a rule compares with an implementation that is not here, it gets
our float64 reference rounded to the dtype, which is kinder than its own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SHORT = ("bfloat16", "float16")
FORWARD, ALL, GRADIENTS = ("out",), ("out", "dq", "dk", "dv"), ("dq", "dk", "dv")


@dataclass(frozen=True)
class Given:
    """Of one tensor, float64, in token layout. x: what is tested; exact: float64 reference; rounded: that in the
    tensor's dtype; plain: attention in the inputs' dtype, scores and weights rounded to it; single: the tested kernel
    run once; ranks: world size; gqa: whether query heads share keys."""

    name: str
    dtype: str
    x: Tensor
    exact: Tensor
    rounded: Tensor
    plain: Tensor | None
    single: Tensor
    ranks: int
    gqa: bool


@dataclass(frozen=True)
class Rule:
    """source: project, file, commit; tensors, dtypes: what it looks at; passes: whether a tensor is accepted."""

    source: str
    tensors: tuple[str, ...]
    dtypes: tuple[str, ...]
    passes: Callable[[Given], bool]


def close(x: Tensor, y: Tensor, atol: float, rtol: float) -> Tensor:
    """torch.isclose, element by element; y is what rtol is of."""
    return (x - y).abs() <= atol + rtol * y.abs()


def largest(x: Tensor) -> float:
    return float(x.abs().max())


def flash_attn_2(given: Given) -> bool:
    times = 2 if given.name == "out" else 3
    return largest(given.x - given.rounded) <= times * largest(given.plain - given.rounded)


def flash_attn_3(given: Given) -> bool:
    dtype = getattr(torch, given.dtype)
    reference = given.rounded.to(dtype)
    atol = 2 * largest((reference + 0.3 - 0.3 - reference).double())
    return largest(given.x - given.rounded) <= 2 * largest(given.plain - given.rounded) + atol


DEFAULTS = {"bfloat16": (1e-5, 1.6e-2), "float16": (1e-5, 1e-3), "float32": (1e-5, 1.3e-6)}


def torch_defaults(given: Given) -> bool:
    return bool(close(given.x, given.rounded, *DEFAULTS[given.dtype]).all())


def kernelbench(given: Given) -> bool:
    tolerance = 1e-4 if given.dtype == "float32" else 1e-2
    return bool(close(given.x, given.rounded, tolerance, tolerance).all())


def flashinfer_bench(given: Given, ratio: float = 1.0) -> bool:
    error = (given.x - given.rounded).abs()
    wrong = (error > 1e-2) & (error / (given.rounded.abs() + 1e-8) > 1e-2)
    return 1 - float(wrong.double().mean()) >= ratio


def transformer_engine(given: Given) -> bool:
    tolerance = 5e-3 if given.dtype == "float16" else 3.5e-2 if given.gqa else 2.5e-2
    return bool(close(given.x, given.single, tolerance, tolerance).all())


def torch_context_parallel(given: Given) -> bool:
    if given.dtype == "float32":
        atol = 1e-8 if given.name == "out" else 2e-6
    else:
        atol = (1e-3 if given.name == "out" else 8e-3) * given.ranks
    return bool(close(given.single, given.x, atol, 1e-5).all())


RTOL = {"out": 0.05, "dv": 0.05, "dq": {"bfloat16": 0.3, "float16": 0.2}, "dk": {"bfloat16": 0.15, "float16": 0.08}}


def magi_attention(given: Given) -> bool:
    rtol = RTOL[given.name]
    rtol = rtol[given.dtype] if isinstance(rtol, dict) else rtol
    mismatch, own = (float((~close(each, given.exact, 1e-8, rtol)).double().mean()) for each in (given.x, given.plain))
    in_norm = largest(given.x - given.exact) <= 2 * largest(given.plain - given.exact)
    return in_norm and mismatch <= min(2 * own, 0.75)


def cosine(given: Given) -> bool:
    both = float(given.x.norm() * given.exact.norm())
    return both > 0 and float((given.x * given.exact).sum()) / both > 0.99


FA2 = "flash-attention 0251105, tests/test_flash_attn.py 1121-1132"
FA3 = "flash-attention 0251105, hopper/test_flash_attn.py 255-348"
TORCH = "torch 2.13, torch/testing/_comparison.py"
KERNELBENCH = "KernelBench 423217d, src/kernelbench/eval.py 83-103, 799-805"
FLASHINFER = "flashinfer-bench 40e6ca7, bench/config.py 41-45, bench/utils.py 97-118"
TE = "TransformerEngine d0067d0, tests/pytorch/attention/run_attention_with_cp.py 172-184"
TORCH_CP = "pytorch 01df946, test/distributed/tensor/test_attention.py"
MAGI = "MagiAttention 2c64135, magi_attention/testing/precision.py 35-37, tests/test_pipeline.py 1362-1418"
EVERY = (*SHORT, "float32")
RULES = {
    "flash-attention 2x": Rule(FA2, ALL, SHORT, flash_attn_2),
    "flash-attention 3, 2x + atol": Rule(FA3, ALL, SHORT, flash_attn_3),
    "torch.testing defaults": Rule(TORCH, ALL, EVERY, torch_defaults),
    "KernelBench": Rule(KERNELBENCH, FORWARD, EVERY, kernelbench),
    "flashinfer-bench": Rule(FLASHINFER, FORWARD, EVERY, flashinfer_bench),
    "TransformerEngine CP": Rule(TE, ALL, SHORT, transformer_engine),
    "torch CP": Rule(TORCH_CP, ALL, ("bfloat16", "float32"), torch_context_parallel),
    "MagiAttention": Rule(MAGI, ALL, SHORT, magi_attention),
    "cosine > 0.99": Rule("a rule of thumb; no file", ALL, EVERY, cosine),
}
