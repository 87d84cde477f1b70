"""Faults of kernels in 8 bits from public reports, each planted in a ring's kernel; single device's stays healthy.

They are no part of the corpus `tests.unit.fault.planted` and of its rates: they need `kernel=quantised`, and some need
inputs or lengths of their own (`where`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accuracy.core.quantisation import FORMATS
from accuracy.kernel.base import Kernel
from accuracy.runtime.rounding import round_to_format
from accuracy.variant.base import Schedule
from accuracy.world.base import Tensors
from tests.unit.fault.planted.base import EVERYTHING, WAYS, Fault, on_kernel

E4M3 = FORMATS["e4m3"]
Change = Callable[[Tensor], Tensor]


def of_operand(changed: str, change: Change) -> Schedule:
    """The ring whose forward is given q, k or v changed."""

    def forward(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
        named = zip("qkv", tensors, strict=True)
        return kernel.forward(*(change(x).to(x.dtype) if name == changed else x for name, x in named), **how)

    return on_kernel(forward=forward)


def cast(scale: Change, overflows: bool = False) -> Change:
    """A cast of x (B, S, H, D) to e4m3 by a scale that somebody chose; overflows: as a plain conversion does, to NaN
    beyond its largest value."""

    def change(x: Tensor) -> Tensor:
        factor = scale(x.float())
        scaled = x.float() / factor
        beyond = overflows & (scaled.abs() > E4M3.largest)
        return torch.where(beyond, torch.nan, round_to_format(scaled, E4M3)) * factor

    return change


def own(x: Tensor) -> Tensor:
    """The right scale of a tensor."""
    return x.abs().amax() / E4M3.largest


def of_next_head(x: Tensor) -> Tensor:
    """The scale of head h + 1 for head h."""
    return x.abs().amax((1, 3), keepdim=True).roll(1, 2) / E4M3.largest


def stale(x: Tensor) -> Tensor:
    """Of a step before the tensor grew to 8 times its size."""
    return own(x) / 8


def not_undone(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """P times 256 is summed, and nothing divides by 256."""
    out, lse = kernel.forward(*tensors, **how)
    return out * 256, lse


def with_policy(**changes: Any) -> Schedule:
    """The ring whose kernel has another policy than single device's, in both directions."""

    def of_way(way: str) -> Callable[..., Tensors]:
        return lambda kernel, *tensors, **how: getattr(replace(kernel, **changes), way)(*tensors, **how)

    return on_kernel(**{way: of_way(way) for way in WAYS})


def mutating(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensors:
    """Smoothing writes into the caller's k, which the ring then sends on (SageAttention 1.0.6)."""
    found = kernel.forward(q, k, v, **how)
    k -= k.mean(1, keepdim=True)
    return found


SMALL = ("also=null", "inputs=gaussian", "dtype=bfloat16", "world_size=4", "seed=[0,1]", "kernel=quantised")
FP8 = (*SMALL, "kernel.quantised.policy=fp8_tensor")
LONG = (
    *SMALL, "kernel.quantised.accumulator_bits=14", "kernel.quantised.flush_interval=128", "inputs=uniform",
    "problem.seqlen=1024", "dtype=float32", "world_size=1", "problem.heads=1", "problem.heads_kv=1", "seed=[0,1,2,3]",
)  # fmt: skip
CAPTURED = ("inputs=captured", "problem.seqlen=256", "problem.heads_kv=1", "problem.head_dim=32", "seed=0")
DIFFUSE = ("problem.seqlen=1024", "problem.mask=full", "problem.heads=2")
OF_OUT = "out dq dk"
PARTS = {
    "scale_applied_twice": Fault(of_operand("v", lambda x: x * own(x.float())), OF_OUT, where=FP8),
    "prescale_not_undone": Fault(on_kernel(forward=not_undone), OF_OUT, where=FP8),
    # flashinfer issue 5020: what the cast of P loses is larger in a backward, where weights are normalised
    "prescale_missing": Fault(with_policy(p_prescale=1.0), "dv", where=(*FP8, *DIFFUSE), consequences=OF_OUT),
    # the backward has the right one, and an lse that is not its own
    "amax_of_the_wrong_head": Fault(
        of_operand("q", cast(of_next_head)), "dq dk dv", where=(*FP8, *CAPTURED), consequences="out lse"),
    "stale_delayed_scale": Fault(of_operand("v", cast(stale)), OF_OUT, where=FP8),
    "overflow_to_nan": Fault(of_operand("k", cast(stale, overflows=True)), EVERYTHING, where=FP8),
    "k_mutated_in_place": Fault(on_kernel(forward=mutating), EVERYTHING, where=FP8),
    # flash-attention issue 2250
    "accumulator_flushed_late": Fault(with_policy(flush_interval=0), "out", where=LONG, consequences="dq dk dv"),
    "fn_read_as_fnuz": Fault(of_operand("v", lambda x: x / 2), OF_OUT, where=FP8),
}  # fmt: skip
