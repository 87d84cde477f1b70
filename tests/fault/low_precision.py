"""Faults of kernels in 8 bits from public reports, each planted in a ring's kernel; single device's stays healthy.

`tests.fault.low_precision:NAME` finds one. They are no part of the corpus `tests.fault.planted` and of its rates: they
need `kernel=quantised`, and some need inputs or lengths of their own (`where`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accuracy.core.quantisation import FORMATS
from accuracy.kernel.base import Kernel
from accuracy.runtime.quantise import round_to_format
from accuracy.variant.base import Schedule
from accuracy.world.base import Tensors
from tests.fault.planted.base import EVERYTHING, Fault, on_kernel

E4M3 = FORMATS["e4m3"]
Change = Callable[[Tensor], Tensor]


def amax(x: Tensor, *over: int) -> Tensor:
    """The largest value of x (B, S, H, D), of all elements or over dimensions that stay."""
    return x.abs().amax(over, keepdim=True) if over else x.abs().amax()


def operands(q: Change | None = None, k: Change | None = None, v: Change | None = None) -> Callable[..., Tensors]:
    """A forward that is given changed operands."""

    def forward(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
        pairs = zip(tensors, (q, k, v), strict=True)
        return kernel.forward(*(x if change is None else change(x).to(x.dtype) for x, change in pairs), **how)

    return forward


def by_scale(scale: Callable[[Tensor], Tensor], cast: Callable[[Tensor], Tensor]) -> Change:
    """A cast of x (B, S, H, D) by a scale that somebody chose."""

    def change(x: Tensor) -> Tensor:
        factor = scale(x.float())
        return cast(x.float() / factor) * factor

    return change


def saturating(x: Tensor) -> Tensor:
    """To e4m3."""
    return round_to_format(x, E4M3)


def overflowing(x: Tensor) -> Tensor:
    """To e4m3 as a plain conversion does: NaN beyond its largest value."""
    return torch.where(x.abs() > E4M3.largest, torch.nan, round_to_format(x, E4M3))


def own(x: Tensor) -> Tensor:
    """The right scale of a tensor."""
    return amax(x) / E4M3.largest


def of_next_head(x: Tensor) -> Tensor:
    """The scale of head h + 1 for head h."""
    return amax(x, 1, 3).roll(1, 2) / E4M3.largest


def stale(x: Tensor) -> Tensor:
    """Of a step before the tensor grew to 8 times its size."""
    return own(x) / 8


def not_undone(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """P times 256 is summed, and nothing divides by 256."""
    out, lse = kernel.forward(*tensors, **how)
    return out * 256, lse


def with_policy(**changes: Any) -> Schedule:
    """The ring whose kernel has another policy than single device's, in both directions."""

    def forward(kernel: Any, *tensors: Tensor, **how: Any) -> Tensors:
        found: Tensors = replace(kernel, **changes).forward(*tensors, **how)
        return found

    def backward(kernel: Any, *tensors: Tensor, **how: Any) -> Tensors:
        found: Tensors = replace(kernel, **changes).backward(*tensors, **how)
        return found

    return on_kernel(forward=forward, backward=backward)


def mutating(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensors:
    """Smoothing writes into the caller's k, which the ring then sends on (SageAttention 1.0.6)."""
    found = kernel.forward(q, k, v, **how)
    k -= k.mean(1, keepdim=True)
    return found


FP8 = ("kernel=quantised", "kernel.quantised.policy=fp8_tensor")
LONG = (
    "kernel=quantised", "kernel.quantised.accumulator_bits=14", "kernel.quantised.flush_interval=128",
    "inputs=uniform", "problem.seqlen=1024", "dtype=float32", "world_size=1", "problem.heads=1", "problem.heads_kv=1",
    "seed=[0,1,2,3]",
)  # fmt: skip
CAPTURED = ("inputs=captured", "problem.seqlen=256", "problem.heads_kv=1", "problem.head_dim=32", "seed=0")
DIFFUSE = ("problem.seqlen=1024", "problem.mask=full", "problem.heads=2")
OF_OUT = "out dq dk"
PARTS = {
    "scale_applied_twice": Fault(on_kernel(forward=operands(v=lambda x: x * own(x.float()))), OF_OUT, where=FP8),
    "prescale_not_undone": Fault(on_kernel(forward=not_undone), OF_OUT, where=FP8),
    # flashinfer issue 5020: what the cast of P loses is larger in a backward, where weights are normalised
    "prescale_missing": Fault(with_policy(p_prescale=1.0), "dv", where=(*FP8, *DIFFUSE), consequences=OF_OUT),
    "amax_of_the_wrong_head": Fault(  # the backward has the right one, and an lse that is not its own
        on_kernel(forward=operands(q=by_scale(of_next_head, saturating))), "dq dk dv", where=(*FP8, *CAPTURED),
        consequences="out lse",
    ),
    "stale_delayed_scale": Fault(on_kernel(forward=operands(v=by_scale(stale, saturating))), OF_OUT, where=FP8),
    "overflow_to_nan": Fault(on_kernel(forward=operands(k=by_scale(stale, overflowing))), EVERYTHING, where=FP8),
    "k_mutated_in_place": Fault(on_kernel(forward=mutating), EVERYTHING, where=FP8),
    # flash-attention issue 2250
    "accumulator_flushed_late": Fault(with_policy(flush_interval=0), "out", where=LONG, consequences="dq dk dv"),
    "fn_read_as_fnuz": Fault(on_kernel(forward=operands(v=lambda x: x / 2)), OF_OUT, where=FP8),
}  # fmt: skip
