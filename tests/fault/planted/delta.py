"""delta = rowsum(dout out) is left out, doubled or rounded in the backward, or dv is made of other weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from accuracy.world.base import Tensors
from tests.fault.planted.base import Fault, Schedule, on_kernel


def with_out(change: Callable[[Tensor], Tensor]) -> Schedule:
    """The ring whose backward makes delta of another out."""

    def backward(kernel: Any, *tensors: Tensor, **how: Any) -> Tensors:
        *others, out, lse = tensors
        return kernel.backward(*others, change(out), lse, **how)

    return on_kernel(backward=backward)


def unnormalised(kernel: Any, *tensors: Tensor, **how: Any) -> Tensors:
    """dv of exp(s - largest lse of the block) for exp(s - lse): weights whose rows do not add up to 1."""
    *others, lse = tensors
    dq, dk, _ = kernel.backward(*others, lse, **how)
    top = lse.amax(-1, keepdim=True).expand_as(lse)
    return dq, dk, kernel.backward(*others, top, **how)[2]


DELTA = ("delta",)
PARTS = {
    "delta_missing": Fault(with_out(torch.zeros_like), "dq dk", causes=DELTA),
    "delta_twice": Fault(with_out(lambda out: 2 * out), "dq dk", causes=DELTA),
    "delta_of_first_head": Fault(with_out(lambda out: out[:, :, :1].expand_as(out)), "dq dk"),
    "delta_dv_unnormalised": Fault(on_kernel(backward=unnormalised), "dv"),
}
