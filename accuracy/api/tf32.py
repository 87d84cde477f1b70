"""Does a float32 function compute its products in TF32, as tensor cores do? A fact with limits of its own, no fault.

Operands of a product are then rounded to 11 bits, to the nearest or cut off, before it is computed. What that makes of
q, k, v and dout can be computed: attention of these, rounded, in float64. Of the other operands, P and dS, the order of
operations decides. So of out's error the part from q, k and v is known: of three roundings of four (q and k in the
scores, v beside P) it is 0.85 in the mean, as the square root of 3 / 4 has it, and for errors of another kind the
correlation is 0 to within 1 / sqrt(elements), and negative where the other way of rounding is right.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from accuracy.api.bounds import Attention, Exact, exact
from accuracy.bound import policy

ALIKE = 0.5
"""Least correlation of out's error with the one that rounding q, k and v to TF32 makes."""
MOST = 2.0
"""By which the error may exceed that one; of four roundings three are known, so that it is 1.15 times as large."""
DRIFT = 2 * policy.unit("tf32")
"""By which rounding P and dS, all of them cut off, may shift a gain: twice the mean of what is cut, half a spacing."""
_CUT = 13  # of float32's 23 bits of a significand
WAYS = ("rounded to", "cut to")


def rounded(x: Tensor, way: str) -> Tensor:
    """Return float32 numbers with 10 bits behind the binary point, to the nearest (ties to even) or cut off."""
    bits = x.detach().contiguous().view(torch.int32)
    up = (1 << _CUT - 1) - 1 + ((bits >> _CUT) & 1) if way == WAYS[0] else 0
    return ((bits + up) & -(1 << _CUT)).view(torch.float32)


def in_tf32(
    out: Tensor,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None],
    truth: Exact,
    attention: Attention,
    **stored: Any,
) -> tuple[str, Exact] | None:
    """Return how a function's operands were rounded, and the reference and bounds of attention in TF32; None where out
    bears no mark of it.

    out: (B, Sq, H, D), float32, of a function of `tensors`, q, k, v, dout; truth: of the same in float32;
    stored: as in `exact`.
    """
    error = out.double() - truth.reference.out
    q, k, v, dout = tensors
    if not out.dtype == q.dtype == torch.float32 or not error.isfinite().all():
        return None
    for way in WAYS:
        own = rounded(q, way), rounded(k, way), rounded(v, way), None if dout is None else rounded(dout, way)
        inside = policy.cast(truth.policy, "tf32")
        found = exact(*own, attention=attention, rounding=inside, **stored)
        known = found.reference.out - truth.reference.out
        size, most = float(error.norm()), MOST * float(known.norm())
        if most >= size and float((error * known).sum()) > ALIKE * size * most / MOST:
            return way, replace(found, policy=truth.policy)
    return None
