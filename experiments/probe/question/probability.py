"""To how many bits is P rounded before it is multiplied with V? Two keys whose values cancel but for that rounding.

Scores 0 and -x, values 1 and -c with c = exp(x) rounded to the dtype: out = (1 - c exp(-x)) / (1 + exp(-x)) is as small
as c's rounding, so that out's own rounding is far below an error of P. A rounding to p bits has a relative error of
0.42 2^-p (root mean square, over significands spread evenly in the logarithm); 0.6 2^-p where both weights are rounded.
"""

import math

import torch

from accuracy.core.dtype import FORMATS
from experiments.probe.base import Answer, Subject

ITEMS = 256
RMS = 0.4247  # of a rounding, times 2^-p


def ask(subject: Subject) -> Answer:
    """The format, or the bits that are there at least."""
    scores = torch.linspace(0.3, 4.0, ITEMS, dtype=torch.float64).to(subject.torch_dtype).double()
    factors = torch.exp(scores).to(subject.torch_dtype).double()
    q, k, v = subject.zeros(1, batch=ITEMS), subject.zeros(2, batch=ITEMS), subject.zeros(2, batch=ITEMS)
    q[:, 0, 0, 0] = 8 * scores  # 8 times the scale is 1
    k[:, 1, 0, 0] = -1
    v[:, 0, 0, 0], v[:, 1, 0, 0] = 1, -factors
    out, _ = subject.forward(*(subject.given(x) for x in (q, k, v)))
    small = torch.exp(-scores)
    exact = (1 - factors * small) / (1 + small)
    error = (out[:, 0, 0, 0].double().cpu() - exact) * (1 + small)
    kept = -math.log2(max(float(error.square().mean().sqrt()), 2.0**-60) / RMS)
    return Answer(_told(kept, subject.dtype), {"bits": round(kept, 2)})


def _told(kept: float, dtype: str) -> str:
    """The coarsest format that explains the error; both weights rounded cost half a bit more."""
    for name in ("bfloat16", "float16"):
        precision = FORMATS[name].precision
        if precision - 1 < kept < precision + 1:
            return f"rounded to {'TF32 or float16' if name == 'float16' and dtype != 'float16' else name}"
    return f"kept to {kept:.0f} bits" if kept < 20 else "not rounded"
