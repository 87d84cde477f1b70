"""Another softmax scale than the one that was given: in one direction, in one gradient, or in both directions alike."""

import math
from dataclasses import replace
from typing import Any

from torch import Tensor

from accuracy.kernel.base import Kernel
from accuracy.variant.base import Rank
from accuracy.world.base import Tensors
from tests.fault.planted.base import EVERYTHING, GRADIENTS, Fault, given, on_kernel, returning


def default(rank: Rank, *tensors: Tensor) -> tuple[Any, ...]:
    """1 / sqrt(D), whatever was given."""
    return replace(rank, scores=replace(rank.scores, scale=1 / math.sqrt(tensors[0].shape[-1]))), *tensors


def twice(kernel: Kernel, q: Tensor, *kv: Tensor, **how: Any) -> Tensors:
    """The queries are scaled by the caller and again by the kernel."""
    return kernel.forward(q * how["scale"], *kv, **how)


def temperature(kernel: Kernel, *tensors: Tensor, **how: Any) -> Tensors:
    """3% off in both directions, as a scale that was rounded for display."""
    return (kernel.forward if len(tensors) == 3 else kernel.backward)(*tensors, **how | {"scale": how["scale"] * 1.03})


SCALE = ("scale",)
FORWARD = Fault(given("forward", default), EVERYTHING, causes=SCALE)
PARTS = {
    "scale_forward": FORWARD,
    "scale_backward": Fault(given("backward", default), GRADIENTS, causes=SCALE),
    "scale_both": Fault(given("forward", default, given("backward", default)), EVERYTHING, causes=SCALE),
    "scale_twice_forward": Fault(on_kernel(forward=twice), EVERYTHING, causes=SCALE),
    "scale_3_percent": Fault(on_kernel(forward=temperature, backward=temperature), EVERYTHING, causes=SCALE),
    "scale_missing_in_dq": Fault(
        returning("backward", lambda rank, dq, *kv: (dq / rank.scale, *kv)), "dq", causes=("scale", "factor")
    ),
}
