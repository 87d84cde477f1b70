"""The product of unnormalised weights and values is rounded to 16 bits before it is divided by the row's sum.

Where several weights are exactly 1 and the values have one sign, that rounding is biased: a sum of two values needs
one bit more than they have, and the small weights push every tie the same way (Qiu and Yao 2025, arXiv 2510.04212).
"""

from typing import Any

from torch import Tensor

from accuracy.kernel.base import Kernel
from tests.fault.planted.base import apply, on_kernel, softmax

EXPECTED = {"out": "biased", "delta": "biased"}


def forward(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    """The product with weights of which the largest is 1, rounded."""
    weights, _ = softmax(q, k, how["scale"], how["causal"])
    top = weights.amax(-1, keepdim=True)
    product = apply(weights / top, v).to(q.dtype).double()
    out = product * top.squeeze(-1).transpose(1, 2)[..., None]
    return out.to(how["out_dtype"]), kernel.forward(q, k, v, **how)[1]


SCHEDULE = on_kernel(forward=forward)
