"""A value is rounded to 16 bits at one place, whatever the inputs' dtype is."""

from typing import Any

import torch
from torch import Tensor

from accuracy.core.precision import Precision
from accuracy.kernel.base import Kernel
from accuracy.kernel.eager import Eager
from accuracy.variant.base import Rank
from accuracy.variant.ring import Ring
from accuracy.world.base import Tensors
from tests.fault.planted.base import EVERYTHING, GRADIENTS, Fault, given, on_kernel, returning


def weights(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """P and dS in bfloat16."""
    rounding = Eager(probability_dtype="bfloat16")
    return (rounding.forward if len(tensors) == 3 else rounding.backward)(*tensors, **how)


def lse_of_backward(rank: Rank, *tensors: Tensor) -> tuple[Any, ...]:
    """lse saved in float16 for the backward."""
    *others, lse = tensors
    return rank, *others, lse.half().to(lse.dtype)


CAST = ("cast",)
PARTS = {
    "cast_weights": Fault(on_kernel(forward=weights, backward=weights), "out dq dk dv", causes=CAST),
    "cast_partial": Fault(Ring(precision=Precision(partial="float16")), "out dq dk", causes=CAST),
    "cast_lse": Fault(
        returning("forward", lambda rank, out, lse: (out, lse.half().to(lse.dtype))), "lse dq dk dv", causes=CAST
    ),
    "cast_lse_saved": Fault(given("backward", lse_of_backward), GRADIENTS, causes=CAST),
    "cast_dq_sum": Fault(Ring(precision=Precision(dq_accumulator="bfloat16")), "dq", causes=CAST),
    "cast_wire": Fault(Ring(precision=Precision(wire="bfloat16")), EVERYTHING, causes=CAST),
    "cast_gradient_wire": Fault(Ring(precision=Precision(gradient_wire="float16")), "dk dv", causes=CAST),
    "cast_out": Fault(
        returning("forward", lambda rank, out, lse: (out.to(torch.bfloat16).to(out.dtype), lse)),
        "out dq dk",
        causes=CAST,
    ),
}
